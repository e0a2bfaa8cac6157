// Reads all of a checkpoint.
#pragma once

#include <functional>

#include "io/checkpoint/checkpoint.h"
#include "io/drives/queue.h"

namespace sluice {

/// Every block has its checksum. bad_request, naming file, tensor and block, for the first that has not; fault where it
/// can not be read. `watch` hears of bytes that are read, and may end it.
Status verify_checkpoint(Checkpoint& checkpoint, const QueueOptions& queue,
                         const std::function<Status(std::uint64_t bytes)>& watch);

}  // namespace sluice
