#include "offload/plan/ownership.h"

#include <iterator>

namespace sluice::planning {

const std::vector<BufferId>& Ownership::take(std::uint64_t lo, std::uint64_t hi, BufferId owner) {
  former_.clear();
  auto it = ranges_.lower_bound(lo);
  if (it != ranges_.begin()) {
    const auto before = std::prev(it);
    if (Range& left = before->second; left.end > lo) {
      former_.push_back(left.owner);
      if (left.end > hi) ranges_.emplace_hint(it, hi, left);
      left.end = lo;
    }
  }
  it = ranges_.lower_bound(lo);
  while (it != ranges_.end() && it->first < hi) {
    former_.push_back(it->second.owner);
    const Range range = it->second;
    it = ranges_.erase(it);
    if (range.end > hi) it = ranges_.emplace_hint(it, hi, range);
  }
  ranges_.emplace_hint(it, lo, Range{hi, owner});
  return former_;
}

}  // namespace sluice::planning
