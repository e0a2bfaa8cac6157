// In which order a step passes over the units of a model: a pure function, and all that the program's order follows from.
#pragma once

#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

enum class Phase : std::uint8_t { forward, head, backward };

/// All micro-batches of a group through one unit in one direction; through the head in both, where that is trained.
struct Pass {
  Phase phase;
  UnitId unit;
  MicroBatchGroup group;
  bool is_first = false, is_last = false;  ///< of the unit's passes in this direction

  /// The embedding's backward pass needs none.
  bool reads_parameters() const { return phase != Phase::backward || unit != 0; }
};

struct PassOrder {
  std::vector<Pass> passes;
  std::vector<std::vector<std::size_t>> readers;  ///< by unit: the passes that read its parameters
  std::vector<UnitId> updates;                    ///< the order in which units are updated
};

/// Of a plan of this kind: train, evaluate and decode. Each group of micro-batches goes through all units, and in training
/// back again, before the next one does.
PassOrder order_passes(PlanKind kind, const Workload& workload, const Schedule& schedule);

}  // namespace sluice
