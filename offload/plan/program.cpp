#include "offload/plan/program.h"

#include "sluice/status.h"

namespace sluice::planning {

Program::Program(const StepPlan& plan, std::uint32_t iterations)
    : plan_(plan), iterations_(iterations), ops_(static_cast<std::uint32_t>(plan.ops.size())) {
  lane_ops_.resize(plan.lanes.size());
  place_.resize(ops_);
  for (OpId i = 0; i < ops_; ++i) {
    const Op& op = plan.ops[i];
    SLUICE_CHECK(op.lane < plan.lanes.size(), "op %u names lane %u of %zu", i, op.lane, plan.lanes.size());
    for (const Wait& w : op.waits) SLUICE_CHECK(w.op < ops_, "op %u waits for op %u of %u", i, w.op, ops_);
    for (const Access& a : op.accesses)
      SLUICE_CHECK(a.buffer < plan.buffers.size(), "op %u names buffer %u of %zu", i, a.buffer, plan.buffers.size());
    place_[i] = static_cast<std::uint32_t>(lane_ops_[op.lane].size());
    lane_ops_[op.lane].push_back(i);
  }
}

NodeId Program::target(NodeId n, const Wait& wait) const {
  const std::uint32_t k = iteration(n);
  if (!wait.previous_iteration) return node(k, wait.op);
  return k == 0 ? no_node : node(k - 1, wait.op);
}

std::uint32_t steady_iterations(const StepPlan& plan) {
  if (!plan.cyclic) return 1;
  for (const Buffer& b : plan.buffers)
    if (b.slots == 2) return 3;
  return 2;
}

}  // namespace sluice::planning
