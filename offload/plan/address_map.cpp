#include "offload/plan/address_map.h"

#include <algorithm>
#include <iterator>

namespace sluice::planning {

AddressMap::Segments::const_iterator AddressMap::first_ending_after(std::uint64_t address) const {
  auto it = segments_.upper_bound(address);
  if (it != segments_.begin())
    if (const auto before = std::prev(it); before->second.end > address) return before;
  return it;
}

std::uint32_t AddressMap::new_row() {
  if (!free_rows_.empty()) {
    const std::uint32_t row = free_rows_.back();
    free_rows_.pop_back();
    std::fill_n(rows_.begin() + static_cast<std::ptrdiff_t>(std::size_t{row} * stride_), stride_, 0u);
    return row;
  }
  rows_.resize(rows_.size() + stride_, 0);
  return static_cast<std::uint32_t>(rows_.size() / stride_ - 1);
}

AddressMap::Segments::iterator AddressMap::cut(Segments::iterator segment, std::uint64_t at) {
  const std::uint32_t copy = new_row();
  std::copy_n(row(segment->second), stride_, &rows_[std::size_t{copy} * stride_]);
  const auto rest = segments_.emplace_hint(std::next(segment), at, Segment{segment->second.end, copy});
  segment->second.end = at;
  return rest;
}

AddressMap::Segments::iterator AddressMap::cut(std::uint64_t at) {
  const auto it = segments_.lower_bound(at);
  if (it == segments_.begin() || (it != segments_.end() && it->first == at)) return it;
  const auto before = std::prev(it);
  return before->second.end > at ? cut(before, at) : it;
}

void AddressMap::read(std::uint64_t lo, std::uint64_t hi, LaneId lane, NodeId node) {
  auto it = cut(lo);
  for (std::uint64_t at = lo; at < hi; ++it) {
    if (it == segments_.end() || it->first > at) {
      const std::uint64_t end = it == segments_.end() ? hi : std::min(hi, it->first);
      it = segments_.emplace_hint(it, at, Segment{end, new_row()});
    } else if (it->second.end > hi) {
      cut(it, hi);
    }
    row(it->second)[1 + lane] = node + 1;
    at = it->second.end;
  }
}

void AddressMap::write(std::uint64_t lo, std::uint64_t hi, NodeId node) {
  auto it = cut(lo);
  // Most writes are of what was written or read whole before: its segment stays.
  if (it == segments_.end() || it->first > lo)
    it = segments_.emplace_hint(it, lo, Segment{hi, new_row()});
  else if (it->second.end > hi)
    cut(it, hi);
  for (auto other = std::next(it); other != segments_.end() && other->first < hi; other = segments_.erase(other)) {
    if (other->second.end > hi) cut(other, hi);
    free_rows_.push_back(other->second.row);
  }
  it->second.end = hi;
  std::uint32_t* const last = row(it->second);
  std::fill_n(last, stride_, 0u);
  last[0] = node + 1;
}

}  // namespace sluice::planning
