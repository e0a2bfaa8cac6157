// From an op of a plan to the arguments of a sublayer: the same for every device.
#pragma once

#include <cstdint>
#include <span>

#include "offload/run/executor.h"
#include "sluice/profile.h"
#include "src/model/sublayer.h"

namespace sluice {

/// What the backend of a rank knows beside the plan.
struct SublayerOptions {
  BatchShape shape;  ///< of a micro-batch; decode: at most shape.sequence tokens a call
  Dtype dtype = Dtype::f32;
  int threads = 1;  ///< of the CPU
  std::int64_t kv_capacity = 0;
  bool documents = false;  ///< kept apart: their tokens come with positions
  std::int64_t words = 0;  ///< where sublayers are cut over ranks: this one's, of the vocabulary
  bool leads = true;       ///< the first of those ranks
  std::int64_t slice = 0;  ///< which of each sequence is the rank's
  KernelChoices kernels;   ///< of a GPU; for what is not in it, the library's first advice
};

/// `rope` is left to the device.
SublayerArgs bind_sublayer(const ModelSpec& model, const SublayerOptions& options, const StepPlan& plan, const Op& op,
                           std::span<const Operand> operands, const StepParams& params);

/// Of a flat gradient that is set and not added to: what lies behind the unit's own elements, to whole shards; empty
/// where there is none.
std::span<std::byte> gradient_padding(const SublayerArgs& args, const Op& op, std::span<const Operand> operands);

}  // namespace sluice
