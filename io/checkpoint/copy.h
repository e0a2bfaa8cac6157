// A checkpoint that is there, in another directory too.
#pragma once

#include <functional>
#include <string>

#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"

namespace sluice {

struct CheckpointCopy {
  std::string path;
  bool shares_blocks = false;  ///< the file system has one copy of the bytes
};
/// Verifies all of it, and publishes the same as parent/step-N. Where the file system can share blocks no byte is
/// copied. Errors as verify_checkpoint's and NewCheckpoint's. `watch` hears of bytes, of which there are twice the
/// states' where they are copied.
Result<CheckpointCopy> copy_checkpoint(Checkpoint& from, const std::string& parent, const QueueOptions& queue,
                                       const std::function<Status(std::uint64_t bytes)>& watch);

}  // namespace sluice
