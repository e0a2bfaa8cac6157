#include "offload/plan/program.h"

#include <unordered_map>

#include "sluice/status.h"

namespace sluice::planning {

Program::Program(const StepPlan& plan, std::uint32_t iterations)
    : plan_(plan), iterations_(iterations), ops_(static_cast<std::uint32_t>(plan.ops.size())) {
  for (const Lane& l : plan.lanes) SLUICE_CHECK(l.rank < plan.ranks, "a lane is of rank %u of %u", l.rank, plan.ranks);
  for (const Buffer& b : plan.buffers)
    SLUICE_CHECK(b.rank < plan.ranks, "buffer %s is of rank %u of %u", b.name.c_str(), b.rank, plan.ranks);
  lane_ops_.resize(plan.lanes.size());
  place_.resize(ops_);
  meeting_.assign(ops_, -1);
  std::unordered_map<std::int32_t, std::int32_t> dense;
  for (OpId i = 0; i < ops_; ++i) {
    const Op& op = plan.ops[i];
    SLUICE_CHECK(op.lane < plan.lanes.size(), "op %u names lane %u of %zu", i, op.lane, plan.lanes.size());
    for (const Wait& w : op.waits) SLUICE_CHECK(w.op < ops_, "op %u waits for op %u of %u", i, w.op, ops_);
    for (const Access& a : op.accesses)
      SLUICE_CHECK(a.buffer < plan.buffers.size(), "op %u names buffer %u of %zu", i, a.buffer, plan.buffers.size());
    place_[i] = static_cast<std::uint32_t>(lane_ops_[op.lane].size());
    lane_ops_[op.lane].push_back(i);
    if (op.collective < 0) continue;
    const auto [it, fresh] = dense.try_emplace(op.collective, static_cast<std::int32_t>(participants_.size()));
    if (fresh) participants_.emplace_back();
    participants_[it->second].push_back(i);
    meeting_[i] = it->second;
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
