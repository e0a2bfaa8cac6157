// A checkpoint in another layout, and in other formats: from its manifest alone, without the run that wrote it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"
#include "src/train/states/state_layout.h"

namespace sluice {

/// The model that a checkpoint's manifest describes; its tensors are the checkpoint's. bad_request otherwise.
Result<ModelSpec> model_of(const Checkpoint& checkpoint);

struct ReshapeRequest {
  std::string parent;  ///< directory of checkpoints
  LayoutDegrees degrees;
  std::optional<Dtype> parameters;      ///< f32 or bf16; none: as they are
  std::optional<MomentFormat> moments;  ///< none: as they are
  std::uint64_t memory_bytes = 256u << 20;
  QueueOptions reads, writes;
};

struct ReshapeResult {
  std::string path;
  std::uint64_t step = 0, files = 0, state_bytes = 0, read_bytes = 0;
  StoredFormats formats;
  bool has_moments = false;
  /// Every master and moment has the value that it had.
  bool exact = true;
  std::uint64_t encoded_blocks = 0;  ///< of 8-bit moments, of 256 elements each, that were encoded anew
};

/// Writes the states of `from` as parent/step-N, published whole or not at all. Every block is verified as it is read.
/// A shard's files, one for each part of the model, are written side by side, so that what their parts have in common
/// is read once as far as memory does. bad_request before anything is written where the layout, the memory or the room
/// does not serve, and for what is damaged, naming file and block. `watch` hears the fraction that is done, and may end
/// it.
Result<ReshapeResult> reshape_checkpoint(Checkpoint& from, const ReshapeRequest& request,
                                         const std::function<Status(double fraction)>& watch);

}  // namespace sluice
