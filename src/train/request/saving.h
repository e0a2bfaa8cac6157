// What a step takes that writes a checkpoint beside its work (Workload::saves).
#pragma once

#include <cstdint>
#include <optional>

#include "src/train/request/prepare.h"

namespace sluice {

struct SavingStep {
  std::uint64_t bytes = 0;     ///< of the states, of all ranks
  bool to_swap_drive = false;  ///< where they compete with the step's own
  double seconds = 0, bound_seconds = 0;
};
/// None where steps do not save, and where the drive of the checkpoints was never measured.
std::optional<SavingStep> predict_saving(const Prepared& run);

}  // namespace sluice
