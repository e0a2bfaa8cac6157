// A plan's ops as its lanes see them, unrolled over iterations: what order, hazards and time are worked out on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/plan.h"

namespace sluice::planning {

/// One op of one unrolled iteration: iteration * ops + op.
using NodeId = std::uint32_t;
constexpr NodeId no_node = 0xffffffffu;

/// The plan must outlive it.
class Program {
 public:
  Program(const StepPlan& plan, std::uint32_t iterations);

  const StepPlan& plan() const { return plan_; }
  std::uint32_t iterations() const { return iterations_; }
  std::uint32_t ops() const { return ops_; }
  std::uint32_t lanes() const { return static_cast<std::uint32_t>(lane_ops_.size()); }
  std::uint32_t nodes() const { return ops_ * iterations_; }

  NodeId node(std::uint32_t iteration, OpId op) const { return iteration * ops_ + op; }
  OpId op(NodeId node) const { return node % ops_; }
  std::uint32_t iteration(NodeId node) const { return node / ops_; }
  LaneId lane(NodeId node) const { return plan_.ops[op(node)].lane; }

  /// Position in its lane over all iterations, from 1.
  std::uint32_t stamp(NodeId node) const {
    const OpId o = op(node);
    return iteration(node) * static_cast<std::uint32_t>(lane_ops_[plan_.ops[o].lane].size()) + place_[o] + 1;
  }
  NodeId at(LaneId lane, std::uint32_t stamp) const {
    const auto& ops = lane_ops_[lane];
    const auto size = static_cast<std::uint32_t>(ops.size());
    return node((stamp - 1) / size, ops[(stamp - 1) % size]);
  }
  std::uint32_t lane_nodes(LaneId lane) const {
    return static_cast<std::uint32_t>(lane_ops_[lane].size()) * iterations_;
  }
  /// The node that a wait of `node` means, or no_node for the iteration before the first.
  NodeId target(NodeId node, const Wait& wait) const;

 private:
  const StepPlan& plan_;
  std::uint32_t iterations_, ops_;
  std::vector<std::vector<OpId>> lane_ops_;
  std::vector<std::uint32_t> place_;
};

/// Where an access lies in its arena in one iteration: the two slots of a durable buffer change places every iteration.
inline std::uint64_t address(const StepPlan& plan, const Access& a, std::uint32_t iteration) {
  const Buffer& b = plan.buffers[a.buffer];
  const std::uint64_t slot = b.slots == 2 ? (iteration + static_cast<std::uint32_t>(a.slot)) & 1u : 0;
  return b.offset + slot * padded_bytes(b.bytes) + a.offset;
}

inline bool writes(const Access& a) { return a.mode != Mode::read; }
inline bool is_durable_write(const StepPlan& plan, const Access& a) {
  return writes(a) && plan.buffers[a.buffer].slots == 2;
}

/// Iterations to unroll until every hazard of the last one is seen: bytes of a durable buffer recur every second.
std::uint32_t steady_iterations(const StepPlan& plan);

}  // namespace sluice::planning
