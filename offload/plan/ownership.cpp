#include "offload/plan/ownership.h"

#include <iterator>
#include <utility>

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
  if (it != ranges_.end() && it->first == lo) {  // its range is taken over
    const Range range = std::exchange(it->second, Range{hi, owner});
    former_.push_back(range.owner);
    ++it;
    if (range.end > hi) it = ranges_.emplace_hint(it, hi, range);
  } else {
    ranges_.emplace_hint(it, lo, Range{hi, owner});
  }
  while (it != ranges_.end() && it->first < hi) {
    former_.push_back(it->second.owner);
    const Range range = it->second;
    it = ranges_.erase(it);
    if (range.end > hi) it = ranges_.emplace_hint(it, hi, range);
  }
  return former_;
}

}  // namespace sluice::planning
