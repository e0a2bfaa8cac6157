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
  if (c.drive == DriveUse::flush) flush_seconds += c.seconds;
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
  // Reads and writes move a little beside a flush, and need not move that again.
  const double flushes = hw.ranks * flush_seconds, to_itself = 1 - 1 / behind_flush;
  const double other = hw.saving ? hw.ranks * other_bytes / hw.saving->bytes_per_second : 0;
  return {compute_seconds,
          hw.ranks * core_seconds / hw.cores,
          hw.ranks * memory_seconds,
          std::max(
              {drive_seconds(hw, hw.ranks * read_bytes, hw.ranks * write_bytes) + to_itself * flushes, flushes, other}),
          ranks_of_link(hw) * down,
          ranks_of_link(hw) * up,
          network_seconds.empty() ? 0 : *std::ranges::max_element(network_seconds)};
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
