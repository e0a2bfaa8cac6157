// Who touched which bytes of one arena last, while program order is walked.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "offload/plan/program.h"

namespace sluice::planning {

/// Disjoint segments of addresses, each with its last writer and, per lane, its last reader since then. Ops of one lane
/// become visible in order, so the last reader of a lane stands for those before it.
class AddressMap {
 public:
  explicit AddressMap(std::uint32_t lanes) : stride_(lanes + 1) {}

  /// Raise need[lane] to 1 + the last node of each lane that [lo, hi) has to wait for. node_lane gives a node's lane.
  template <class NodeLane>
  void collect(std::uint64_t lo, std::uint64_t hi, bool write, std::span<std::uint32_t> need,
               NodeLane node_lane) const {
    for (auto it = first_ending_after(lo); it != segments_.end() && it->first < hi; ++it) {
      const std::uint32_t* row = &rows_[std::size_t{it->second.row} * stride_];
      if (row[0] > 0) raise(need[node_lane(row[0] - 1)], row[0]);
      if (write)
        for (std::uint32_t l = 1; l < stride_; ++l) raise(need[l - 1], row[l]);
    }
  }
  void read(std::uint64_t lo, std::uint64_t hi, LaneId lane, NodeId node);
  void write(std::uint64_t lo, std::uint64_t hi, NodeId node);

 private:
  /// Its row holds 1 + node of the writer, then of the last reader of each lane; 0 for none.
  struct Segment {
    std::uint64_t end;
    std::uint32_t row;
  };
  using Segments = std::map<std::uint64_t, Segment>;

  static void raise(std::uint32_t& value, std::uint32_t to) { value = value < to ? to : value; }
  Segments::const_iterator first_ending_after(std::uint64_t address) const;
  /// The first segment that begins at `at` or behind it, where none reaches over it any more.
  Segments::iterator cut(std::uint64_t at);
  /// `at` lies inside of the segment, which ends there from now on; returns the rest.
  Segments::iterator cut(Segments::iterator segment, std::uint64_t at);
  std::uint32_t* row(const Segment& segment) { return &rows_[std::size_t{segment.row} * stride_]; }
  std::uint32_t new_row();  ///< of zeros

  std::uint32_t stride_;
  Segments segments_;
  std::vector<std::uint32_t> rows_, free_rows_;
};

}  // namespace sluice::planning
