// Two checkpoints, of any layouts and formats, compared tensor by tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"

namespace sluice {

/// A state of a tensor that differs, as fp32 values: of parameters the masters, of moments what their codes mean.
struct StateDifference {
  std::string tensor;
  StateKind kind = StateKind::parameter;
  std::uint64_t numel = 0, different = 0;  ///< elements whose bits are not the same
  double largest = 0;                      ///< difference of any element; infinite where one of the two is not finite
  double relative = 0;  ///< norm of the difference to the norm of the first one's values; infinite where those are zero
};

struct CheckpointDiff {
  std::uint64_t tensors = 0, elements = 0;   ///< that were compared; of all states
  std::vector<StateDifference> differences;  ///< in the order of the first one's tensors
  int without_moments = 0;                   ///< 1 or 2: that one lacks them, and the other has them
  bool same() const { return differences.empty() && without_moments == 0; }
};

/// Reads both once, every block verified, with about 64 MiB ahead of each. bad_request where they are of different
/// models, naming a tensor, and for what is damaged. `watch` hears the fraction that is done, and may end it.
Result<CheckpointDiff> diff_checkpoints(Checkpoint& a, Checkpoint& b, const QueueOptions& queue,
                                        const std::function<Status(double fraction)>& watch);

}  // namespace sluice
