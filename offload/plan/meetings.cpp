#include "offload/plan/meetings.h"

#include <map>
#include <tuple>
#include <utility>

namespace sluice::planning {

Meetings::Meetings(std::span<const StepPlan* const> members) : by_op_(members.size()) {
  if (members.size() == 1) return;
  using Key = std::tuple<AxisSet, std::int32_t, std::vector<RankId>, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, std::size_t> known;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const StepPlan& plan = *members[m];
    by_op_[m].assign(plan.ops.size(), none);
    for (OpId i = 0; i < plan.ops.size(); ++i) {
      const Op& op = plan.ops[i];
      if (op.collective < 0 || op.group < 0) continue;
      const AxisSet axes = plan.groups[static_cast<std::size_t>(op.group)];
      std::vector<RankId> elsewhere = plan.topology.coordinates;
      for (std::size_t axis = 0; axis < elsewhere.size(); ++axis)
        if (axes >> axis & 1) elsewhere[axis] = 0;
      const std::int32_t own = plan.topology.position(axes);
      const auto [from, to] = op.kind == OpKind::send      ? std::pair(own, op.peer)
                              : op.kind == OpKind::receive ? std::pair(op.peer, own)
                                                           : std::pair(-1, -1);
      const auto [found, is_new] = known.try_emplace({axes, op.group, elsewhere, from, to, op.collective}, all_.size());
      if (is_new) all_.emplace_back();
      all_[found->second].push_back({m, i});
      by_op_[m][i] = found->second;
    }
  }
}

}  // namespace sluice::planning
