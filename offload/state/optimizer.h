// The optimizer lane's arithmetic on tiles in host memory: AdamW by tensor segments, squared norms, and the step's
// control block. What AdamW is called with is the same where a device has the tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offload/state/moment_layout.h"
#include "offload/state/worker_team.h"
#include "sluice/adamw.h"
#include "sluice/dtype.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// One tensor in its unit's flat buffer, as the optimizer sees it. Elements between segments are padding and left
/// alone.
struct TensorSegment {
  std::uint64_t offset = 0, numel = 0;  ///< elements, in the unit's flat buffer; ascending, not overlapping
  float weight_decay = 1;               ///< multiplies StepParams::weight_decay (0 or 1)
  float lr_scale = 1;
  bool trainable = true;
  std::uint64_t tensor = 0;  ///< its number in the model: random bits depend on it
  bool counts = true;        ///< in the norm of the gradients: else another rank counts what is the same there
};
struct OptimizerUnit {
  std::vector<TensorSegment> segments;
  std::uint64_t shard_begin = 0;  ///< first element of this rank's shard in the flat buffer
};

/// Part of one segment within a tile, small enough to share between threads.
struct UpdateChunk {
  std::uint64_t begin = 0;  ///< elements from the start of the tile
  std::uint32_t numel = 0;
  float weight_decay = 1, lr_scale = 1;
  std::uint64_t tensor = 0, first_index = 0;  ///< the tensor, and the chunk's first element in it
};
/// Append the chunks of the tile of elements [begin, begin + numel) of the unit's flat buffer. None crosses a multiple
/// of chunk_numel from the tile's start, so that each lies in one group of the moments' layout.
constexpr std::uint64_t chunk_numel =
    1u << 16;  ///< 1 to 2 MiB of state: large against a hand-over, small against a tile
void append_chunks(const OptimizerUnit& unit, std::uint64_t begin, std::uint64_t numel,
                   std::vector<UpdateChunk>& chunks);

/// One tile of a unit's state, in one memory. remainder is null in fp32.
struct UpdateTile {
  Dtype dtype = Dtype::f32;
  MomentLayout moments = {};
  std::uint64_t numel = 0;
  std::byte* parameter = nullptr;
  std::int16_t* remainder = nullptr;
  std::byte *exp_avg = nullptr, *exp_avg_sq = nullptr;  ///< as `moments` lays them out
  const void* gradient = nullptr;
  Dtype gradient_dtype = Dtype::f32;  ///< f32 or bf16
};
/// A chunk's part of the tile, and the constants for it.
struct AdamwCall {
  AdamwStep step;
  AdamwRange range;
};
AdamwCall adamw_call(const UpdateTile& tile, const UpdateChunk& chunk, const StepParams& params, double clip_factor);
/// Takes the first chunk away and with it those that only go on where it ends, within one group of the moments' layout:
/// a device is quicker with few calls. The bits are the same.
UpdateChunk take_long_chunk(std::span<const UpdateChunk>& chunks, const MomentLayout& moments);

/// AdamW of params.update_step on the chunks of a tile in host memory. Returns how many parameters diverged.
std::uint64_t update_tile(const UpdateTile& tile, std::span<const UpdateChunk> chunks, const StepParams& params,
                          double clip_factor, WorkerTeam& team);

/// Adds the squared norm of a tile, by blocks of 4096 elements, each in double precision and added without rounding:
/// how shards and tiles cut a gradient at such borders changes no bit. `partial` has a double per block.
void add_tile_norm(std::span<const float> gradient, WorkerTeam& team, std::span<double> partial, ExactSum* sum);
constexpr std::uint64_t norm_block_numel = 4096;

/// The gradient of a tile in bf16, rounded once and for its update: of the elements of the chunks by (seed, step,
/// tensor, index), and zeros where the tile has others, which are updated by nothing.
void round_tile(std::span<const float> gradient, std::span<const UpdateChunk> chunks, std::uint64_t seed,
                std::uint64_t step, WorkerTeam& team, bf16* rounded);

/// By which gradients are multiplied, as torch has it; `limit` above 0.
inline double clip_factor(double grad_norm, double limit) { return std::min(1.0, limit / (grad_norm + 1e-6)); }

/// What all ranks have added up, into the control block; clip factor as torch has it. not_finite if the loss or the
/// norm is not.
Status fill_control(double norm_sq, double loss_sum, const StepParams& params, ControlBlock* control);

}  // namespace sluice
