// What it takes to make a step again that has clipped where none was expected to.
#pragma once

#include <cstdint>

#include "src/train/request/prepare.h"

namespace sluice {

struct Repair {
  std::uint64_t loaded_bytes = 0;  ///< of the ranks of a machine: copies in memory, which were updated in place
  bool from_gradients = false;     ///< that were kept: updates alone are made again
  double seconds = 0;              ///< of the step from its first begin to its last end
};
/// Of a run that speculates and fits.
Repair predict_repair(const Prepared& run);

/// Before steps are speculative again, where others have used the memory of parameters that stay on the device: these
/// are loaded.
double predict_change_seconds(const Prepared& run);

}  // namespace sluice
