// Which op has certainly finished when another starts: vector clocks over the lanes of an unrolled plan.
//
// With S the start clock, F the finish clock, and joins component-wise maxima of lane positions:
//   S(j) = join of F(waits of j), S(op before j in its lane) and, unless the lane is windowed, F(op before j)
//   F(j) = join of S(j), F(op before j in its lane) and j itself
// What other ranks do is not known here: a collective finishes when it has started. That is less order than there is,
// and ranks share no memory, so what is proven with it holds. Whether collectives meet at all is the world's proof
// (world.h). i happens before j when S(j) holds i: it has finished before j starts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/plan/program.h"

namespace sluice::planning {

using Clock = std::span<const std::uint32_t>;  ///< per lane: how many of its nodes have finished

class HappensBefore {
 public:
  /// Executes the program without time. `program` must outlive it.
  explicit HappensBefore(const Program& program);

  /// False when the lanes stop before everything has finished; stuck() then holds the node each stopped lane is at.
  bool complete() const { return stuck_.empty(); }
  struct Stuck {
    NodeId node;
    NodeId waits_for;  ///< no_node: for its turn in the lane
  };
  const std::vector<Stuck>& stuck() const { return stuck_; }

  Clock start(NodeId n) const { return {&starts_[std::size_t{n} * lanes_], lanes_}; }
  Clock finish(NodeId n) const { return {&finishes_[std::size_t{n} * lanes_], lanes_}; }
  bool before(NodeId i, NodeId j) const { return start(j)[program_.lane(i)] >= program_.stamp(i); }
  /// Position in one order of finishing that the plan allows: a finish clock holds only nodes with smaller ones.
  std::uint32_t finish_order(NodeId n) const { return finish_order_[n]; }
  /// What lane order alone puts before the start of n.
  std::vector<std::uint32_t> lane_clock(NodeId n) const;

 private:
  void advance(LaneId lane);
  bool try_start(LaneId lane);
  bool try_finish(LaneId lane);
  void set_start(LaneId lane, NodeId n);
  void set_finish(LaneId lane, NodeId n);

  const Program& program_;
  std::size_t lanes_;
  std::vector<std::uint32_t> starts_, finishes_, finish_order_;
  std::vector<std::uint32_t> started_, finished_;  ///< per lane
  std::vector<NodeId> blocked_on_;                 ///< per lane
  std::vector<LaneId> ready_;
  std::uint32_t order_ = 0;
  std::vector<Stuck> stuck_;
};

/// clock = component-wise maximum of both.
void join(std::span<std::uint32_t> clock, Clock other);

}  // namespace sluice::planning
