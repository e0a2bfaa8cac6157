// What all moves that emit ops of sublayers share.
#pragma once

#include <functional>

#include "src/model/model.h"
#include "src/schedule/emitter.h"

namespace sluice {

struct SublayerOps {
  /// An op of a micro-batch, with its cost.
  std::function<Op&(OpKind, UnitId, int)> compute;
  std::function<void(Op&, UnitId)> touch_parameters;
  /// Where the unit reads any.
  std::function<void(Op&, UnitId, int)> touch_tokens;
  std::function<const SublayerCost&(UnitId)> cost;
  /// What of its saved activations is on the device.
  std::function<void(Op&, UnitId, int, Mode)> touch_saved;
};

}  // namespace sluice
