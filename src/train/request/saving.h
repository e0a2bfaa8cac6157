// What a step takes that writes a checkpoint beside its work (Workload::saves).
#pragma once

#include <cstdint>
#include <optional>

#include "src/train/request/prepare.h"

namespace sluice {

struct SavingStep {
  std::uint64_t bytes = 0;     ///< of the states, of all ranks
  bool to_swap_drive = false;  ///< where they compete with the step's own
  bool shares_blocks = false;  ///< with the swap file: nothing is written
  double seconds = 0, bound_seconds = 0;
};
/// None where steps do not save, and where the drive of the checkpoints was never measured.
std::optional<SavingStep> predict_saving(const Prepared& run);

/// Where checkpoints of these go that are on none of the drives of the swap file: the directory, or the nearest one
/// above it that there is. None where steps do not save, and where they save to those drives.
std::optional<std::string> other_drive_of_checkpoints(const RunConfig& config, const Workload& workload);

/// What `saves` checkpoints write to the drives of the swap file; 0 where they lie elsewhere.
std::uint64_t saved_to_drives(const Prepared& run, std::uint64_t saves);

}  // namespace sluice
