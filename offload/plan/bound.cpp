// The time law: no step is faster than the largest, over resources, of work / rate.
#include <algorithm>

#include "offload/plan/cost.h"
#include "offload/plan/simulate.h"
#include "offload/plan/work.h"

namespace sluice {
namespace planning {

void Work::add(const OpCost& c) {
  compute_seconds += c.best_seconds;
  core_seconds += c.best_seconds > 0 ? c.core_seconds * (c.best_seconds / c.seconds) : c.core_seconds;
  memory_seconds += c.memory_seconds;
  link_down_seconds += c.link_down_seconds;
  link_up_seconds += c.link_up_seconds;
  if (c.network_seconds > 0) {
    const auto group = static_cast<std::size_t>(c.group);
    network_seconds.resize(std::max(network_seconds.size(), group + 1));
    network_seconds[group] += c.network_seconds;
  }
  (c.drive == DriveUse::write ? write_bytes : c.drive == DriveUse::other ? other_bytes : read_bytes) += c.drive_bytes;
}

ResourceSeconds Work::seconds(const HardwareProfile& hw) const {
  // Both directions at once may share what neither reaches alone.
  double down = link_down_seconds, up = link_up_seconds;
  if (hw.device) {
    const double together =
        (down * hw.device->h2d_bytes_per_second + up * hw.device->d2h_bytes_per_second) / both_ways_rate(*hw.device);
    (down > up ? down : up) = std::max({down, up, together});
  }
  const double other = hw.saving ? hw.ranks * other_bytes / hw.saving->bytes_per_second : 0;
  return {compute_seconds,
          hw.ranks * core_seconds / hw.cores,
          hw.ranks * memory_seconds,
          std::max(drive_seconds(hw, hw.ranks * read_bytes, hw.ranks * write_bytes), other),
          ranks_of_link(hw) * down,
          ranks_of_link(hw) * up,
          network_seconds.empty() ? 0 : *std::ranges::max_element(network_seconds)};
}

double pass_bound(const StepPlan& plan, const HardwareProfile& hw) {
  const CostModel model(plan, hw);
  std::vector<Work> passes(1);
  struct At {
    std::size_t pass = 0;
    bool started = false;
    UnitId unit = -1;
    bool backward = false;
  };
  At at;
  for (const Op& op : plan.ops) {
    if (is_compute(op.kind)) {
      // Of ops that are of both passes, those are of the way back that follow one of a later unit.
      const bool is_of_both = op.kind == OpKind::enter || op.kind == OpKind::qkv || op.kind == OpKind::core;
      const bool came_back = at.unit > op.unit || (at.unit == op.unit && at.backward);
      const bool backward =
          op.kind == OpKind::recompute || op.kind == OpKind::backward || op.kind == OpKind::backward_input ||
          op.kind == OpKind::backward_weight || op.kind == OpKind::part_recompute || op.kind == OpKind::expose ||
          op.kind == OpKind::part_backward || op.kind == OpKind::enter_backward || op.kind == OpKind::out_backward ||
          op.kind == OpKind::core_backward || op.kind == OpKind::qkv_backward || (is_of_both && came_back) ||
          (is_streamed(op.kind) && at.backward);
      if (at.started && (at.unit != op.unit || at.backward != backward)) ++at.pass;
      at = {at.pass, true, op.unit, backward};
      if (at.pass == passes.size()) passes.emplace_back();
    }
    passes[at.pass].add(model.cost(op));
  }
  double bound = 0;
  for (const Work& pass : passes) {
    const auto seconds = pass.seconds(hw);
    bound += *std::max_element(seconds.begin(), seconds.end());
  }
  return bound;
}

}  // namespace planning

double op_seconds(const StepPlan& plan, const Op& op, const HardwareProfile& hw) {
  return planning::CostModel(plan, hw).cost(op).seconds;
}

double time_bound(const StepPlan& plan, const HardwareProfile& hw, Resource* bottleneck, ResourceSeconds* seconds) {
  const planning::CostModel model(plan, hw);
  planning::Work work;
  for (const Op& op : plan.ops) work.add(model.cost(op));
  const ResourceSeconds each = work.seconds(hw);
  const auto largest = std::max_element(each.begin(), each.end());
  if (bottleneck) *bottleneck = static_cast<Resource>(largest - each.begin());
  if (seconds) *seconds = each;
  return *largest;
}

}  // namespace sluice
