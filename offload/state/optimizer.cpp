#include "offload/state/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "sluice/random.h"

namespace sluice {
namespace {

/// Of a tensor in a step: one for what its update rounds, and one for its gradient.
struct RoundingKeys {
  std::uint64_t moments, gradient;
};
RoundingKeys rounding_keys(std::uint64_t seed, std::uint64_t step, std::uint64_t tensor) {
  const auto words = philox(seed, step, tensor);
  return {static_cast<std::uint64_t>(words[1]) << 32 | words[0], static_cast<std::uint64_t>(words[3]) << 32 | words[2]};
}

AdamwStep adamw_step(const StepParams& params, const UpdateChunk& chunk, double clip_factor) {
  AdamwStep step;
  step.step = params.update_step;
  step.lr = params.lr * chunk.lr_scale;
  step.beta1 = params.beta1;
  step.beta2 = params.beta2;
  step.eps = params.eps;
  step.weight_decay = params.weight_decay * chunk.weight_decay;
  step.gradient_scale = static_cast<float>(clip_factor);
  step.rounding_key = rounding_keys(params.seed, params.update_step, chunk.tensor).moments;
  return step;
}

}  // namespace

AdamwCall adamw_call(const UpdateTile& tile, const UpdateChunk& chunk, const StepParams& params, double clip_factor) {
  const std::uint64_t at = chunk.begin;
  const MomentLayout::Place place = tile.moments.place(at, tile.numel);
  AdamwRange range;
  range.dtype = tile.dtype;
  range.gradient_dtype = tile.gradient_dtype;
  range.moments = tile.moments.format;
  range.parameter = tile.parameter + at * dtype_bytes(tile.dtype);
  if (tile.dtype == Dtype::bf16) range.remainder = tile.remainder + at;
  range.exp_avg = tile.exp_avg + place.codes;
  range.exp_avg_sq = tile.exp_avg_sq + place.codes;
  if (tile.moments.format == MomentFormat::int8) {
    range.exp_avg_scales = reinterpret_cast<float*>(tile.exp_avg + place.scales);
    range.exp_avg_sq_scales = reinterpret_cast<float*>(tile.exp_avg_sq + place.scales);
  }
  range.gradient = static_cast<const std::byte*>(tile.gradient) + at * dtype_bytes(tile.gradient_dtype);
  range.numel = chunk.numel;
  range.first_index = chunk.first_index;
  return {adamw_step(params, chunk, clip_factor), range};
}

UpdateChunk take_long_chunk(std::span<const UpdateChunk>& chunks, const MomentLayout& moments) {
  UpdateChunk chunk = chunks.front();
  const auto goes_on = [&](const UpdateChunk& next) {
    const bool same_group =
        moments.format != MomentFormat::int8 || next.begin / moments.group_numel == chunk.begin / moments.group_numel;
    return same_group && next.tensor == chunk.tensor && next.begin == chunk.begin + chunk.numel &&
           next.first_index == chunk.first_index + chunk.numel;
  };
  for (chunks = chunks.subspan(1); !chunks.empty() && goes_on(chunks.front()); chunks = chunks.subspan(1))
    chunk.numel += chunks.front().numel;
  return chunk;
}

void append_chunks(const OptimizerUnit& unit, std::uint64_t begin, std::uint64_t numel,
                   std::vector<UpdateChunk>& chunks) {
  for (const TensorSegment& segment : unit.segments) {
    if (!segment.trainable) continue;
    const std::uint64_t from = std::max(begin, segment.offset);
    const std::uint64_t to = std::min(begin + numel, segment.offset + segment.numel);
    for (std::uint64_t at = from; at < to;) {
      const std::uint64_t end = std::min(begin + ((at - begin) / chunk_numel + 1) * chunk_numel, to);
      chunks.push_back({at - begin, static_cast<std::uint32_t>(end - at), segment.weight_decay, segment.lr_scale,
                        segment.tensor, at - segment.offset});
      at = end;
    }
  }
}

std::uint64_t update_tile(const UpdateTile& tile, std::span<const UpdateChunk> chunks, const StepParams& params,
                          double clip_factor, WorkerTeam& team) {
  std::atomic<std::uint64_t> diverged{0};
  team.run(static_cast<std::uint32_t>(chunks.size()), [&](std::uint32_t i) {
    const AdamwCall call = adamw_call(tile, chunks[i], params, clip_factor);
    const AdamwReport report = adamw(call.step, call.range);
    if (report.diverged > 0) diverged.fetch_add(report.diverged, std::memory_order_relaxed);
  });
  return diverged.load(std::memory_order_relaxed);
}

void add_tile_norm(std::span<const float> gradient, WorkerTeam& team, std::span<double> partial, ExactSum* sum) {
  constexpr std::uint64_t blocks_per_chunk = chunk_numel / norm_block_numel;
  const std::uint64_t blocks = (gradient.size() + norm_block_numel - 1) / norm_block_numel;
  const std::uint64_t chunks = (blocks + blocks_per_chunk - 1) / blocks_per_chunk;
  team.run(static_cast<std::uint32_t>(chunks), [&](std::uint32_t chunk) {
    const std::uint64_t end = std::min(blocks, (chunk + 1) * blocks_per_chunk);
    for (std::uint64_t block = chunk * blocks_per_chunk; block < end; ++block) {
      const std::uint64_t at = block * norm_block_numel;
      partial[block] = 0;
      add_squared_norm(gradient.data() + at,
                       static_cast<std::int64_t>(std::min(norm_block_numel, gradient.size() - at)), &partial[block]);
    }
  });
  for (std::uint64_t block = 0; block < blocks; ++block) sum->add(partial[block]);
}

void round_tile(std::span<const float> gradient, std::span<const UpdateChunk> chunks, std::uint64_t seed,
                std::uint64_t step, WorkerTeam& team, bf16* rounded) {
  std::uint64_t at = 0;
  const auto leave_out = [&](std::uint64_t end) { std::fill(rounded + at, rounded + end, bf16{}); };
  for (const UpdateChunk& chunk : chunks) {
    leave_out(chunk.begin);
    at = chunk.begin + chunk.numel;
  }
  leave_out(gradient.size());
  team.run(static_cast<std::uint32_t>(chunks.size()), [&](std::uint32_t i) {
    const UpdateChunk& chunk = chunks[i];
    round_gradient(rounding_keys(seed, step, chunk.tensor).gradient, chunk.first_index, gradient.data() + chunk.begin,
                   chunk.numel, rounded + chunk.begin);
  });
}

Status fill_control(double norm_sq, double loss, const StepParams& params, ControlBlock* control) {
  control->grad_norm_sq = norm_sq;
  control->loss_sum = loss;
  control->clip_factor = params.clip_norm > 0 ? clip_factor(std::sqrt(norm_sq), params.clip_norm) : 1.0;
  if (std::isfinite(loss) && std::isfinite(norm_sq)) return success();
  const char* const what = std::isfinite(loss) ? "the gradient's norm" : "the loss";
  return Error{ErrorCode::not_finite, "step " + std::to_string(params.step) + ": " + what +
                                          " is not finite; lower the learning rate or look at the data of this step"};
}

}  // namespace sluice
