#include "src/schedule/wish.h"

#include <algorithm>
#include <cmath>

#include "src/schedule/stages.h"

namespace sluice {

namespace {

/// Of each place's units.
void keep_square_root(Schedule& s) {
  std::vector<std::size_t> borders{0};
  for (const UnitId first : s.cut) borders.push_back(static_cast<std::size_t>(first));
  borders.push_back(s.units.size() - 1);  // the head has none
  for (std::size_t place = 0; place + 1 < borders.size(); ++place) {
    const std::size_t first = borders[place], end = std::max(first, borders[place + 1]);
    const auto every = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(end - first))));
    for (std::size_t u = first; u < end; ++u) s.units[u].sweep = (u - first) % every == 0 ? 0 : 1;
  }
}

}  // namespace

Schedule fixed(Schedule s, const ScheduleWish& wish) {
  if (wish.group) s.group = *wish.group;
  if (wish.update) s.update_ahead = *wish.update == UpdateOrder::ahead;
  s.both_orders = wish.both_orders && !s.update_ahead;
  if (wish.prefetch) {
    s.prefetch = *wish.prefetch;
    s.lag = std::min(s.prefetch, s.lag);
  }
  for (UnitChoice& c : s.units) {
    if (s.update_ahead || !wish.mixes) c.late = false;
    if (wish.recompute && *wish.recompute != Recompute::optimal) c.core.reset();
    if (wish.recompute == Recompute::none) c.saved = Saved::keep;
    if (wish.recompute && *wish.recompute != Recompute::none && *wish.recompute != Recompute::optimal)
      c.saved = Saved::recompute;
    if (wish.recompute == Recompute::none || wish.recompute == Recompute::full) c.sweep = 0;
    if (wish.activations) c.boundary = *wish.activations;
    if (wish.states) c.parameter_home = c.state_home = c.gradient = *wish.states;
    if (wish.resident) c.resident = *wish.resident;
    if (wish.held) c.held = *wish.held;
    if (wish.second_copy) c.second_copy = *wish.second_copy;
    if (wish.update_on_device) c.update_on_device = *wish.update_on_device;
  }
  if (wish.recompute == Recompute::sqrt) keep_square_root(s);
  return s;
}

std::vector<bool> open_updates(const Workload& workload, const ScheduleWish& wish) {
  if (wish.update) return {*wish.update == UpdateOrder::ahead};
  return workload.inference ? std::vector<bool>{true} : std::vector<bool>{true, false};
}

bool can_mix(const Workload& workload) { return !workload.inference && workload.stages() == 1; }

std::vector<int> open_groups(const Workload& workload, const ScheduleWish& wish) {
  if (wish.group) return {*wish.group};
  std::vector<int> open;
  const int slices = workload.slices();
  for (int group = slices; group <= workload.micro_batches_of_sum(); group += slices) {
    Schedule s;
    s.group = group;
    s.pipeline = wish.pipeline;
    const auto groups = static_cast<int>(micro_batch_groups(workload, s, PlanKind::train).size());
    if (check_pipeline(pipeline_of(workload, s, groups)).ok()) open.push_back(group);
  }
  SLUICE_CHECK(!open.empty(), "(%d micro-batches)", workload.micro_batches);
  return open;
}

}  // namespace sluice
