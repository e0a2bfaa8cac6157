// Collectives between the ranks of one process, each on threads of its own: they publish their buffers, meet, and copy
// or sum from one another.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "offload/run/communicator.h"

namespace sluice {

/// The communicators of all ranks; it outlives who uses them.
class InProcessWorld {
 public:
  explicit InProcessWorld(RankId ranks, std::chrono::seconds deadline = std::chrono::seconds(600));
  ~InProcessWorld();
  Communicator& communicator(RankId rank) { return *ends_[rank]; }

 private:
  std::vector<std::unique_ptr<Communicator>> ends_;
};

}  // namespace sluice
