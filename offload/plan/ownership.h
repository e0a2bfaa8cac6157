// Which transient buffer holds which bytes of one arena, while program order is walked.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sluice/plan.h"

namespace sluice::planning {

/// Ranges of addresses and the buffer that took them last.
class Ownership {
 public:
  /// Give [lo, hi) to `owner`; returns who held parts of it (each buffer once per part, perhaps `owner` itself).
  const std::vector<BufferId>& take(std::uint64_t lo, std::uint64_t hi, BufferId owner);

 private:
  struct Range {
    std::uint64_t end;
    BufferId owner;
  };
  std::map<std::uint64_t, Range> ranges_;
  std::vector<BufferId> former_;
};

}  // namespace sluice::planning
