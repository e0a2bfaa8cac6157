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

void AddressMap::split(std::uint64_t at) {
  auto it = segments_.lower_bound(at);
  if (it != segments_.end() && it->first == at) return;
  if (it == segments_.begin()) return;
  const auto left = std::prev(it);
  if (left->second.end <= at) return;
  const std::uint32_t row = new_row();
  std::copy_n(rows_.begin() + static_cast<std::ptrdiff_t>(std::size_t{left->second.row} * stride_), stride_,
              rows_.begin() + static_cast<std::ptrdiff_t>(std::size_t{row} * stride_));
  segments_.emplace_hint(it, at, Segment{left->second.end, row});
  left->second.end = at;
}

void AddressMap::read(std::uint64_t lo, std::uint64_t hi, LaneId lane, NodeId node) {
  split(lo);
  split(hi);
  auto it = segments_.lower_bound(lo);
  for (std::uint64_t at = lo; at < hi; ++it) {
    if (it == segments_.end() || it->first > at) {
      const std::uint64_t end = it == segments_.end() ? hi : std::min(hi, it->first);
      it = segments_.emplace_hint(it, at, Segment{end, new_row()});
    }
    rows_[std::size_t{it->second.row} * stride_ + 1 + lane] = node + 1;
    at = it->second.end;
  }
}

void AddressMap::write(std::uint64_t lo, std::uint64_t hi, NodeId node) {
  split(lo);
  split(hi);
  auto it = segments_.lower_bound(lo);
  while (it != segments_.end() && it->first < hi) {
    free_rows_.push_back(it->second.row);
    it = segments_.erase(it);
  }
  const std::uint32_t row = new_row();
  rows_[std::size_t{row} * stride_] = node + 1;
  segments_.emplace_hint(it, lo, Segment{hi, row});
}

}  // namespace sluice::planning
