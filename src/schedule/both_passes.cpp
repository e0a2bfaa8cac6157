#include "src/schedule/both_passes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/schedule/knobs.h"

namespace sluice {

double late_share(const Workload& workload, const Schedule& schedule) {
  double late = 0, all = 0;
  for (std::size_t u = 1; u + 1 < schedule.units.size(); ++u) {
    const auto numel = static_cast<double>(workload.shard_numel(static_cast<UnitId>(u)));
    all += numel;
    if (schedule.units[u].late) late += numel;
  }
  return late / all;
}

bool spread_late(const Workload& workload, Schedule& schedule, double share) {
  if (schedule.update_ahead || share < 0 || share > 1) return false;
  bool changed = false;
  const auto set = [&](std::size_t u, bool late) { changed |= std::exchange(schedule.units[u].late, late) != late; };
  double owed = 0;  // parameters that were to be late up to here, and are not
  for (std::size_t u = 1; u + 1 < schedule.units.size(); ++u) {
    const auto numel = static_cast<double>(workload.shard_numel(static_cast<UnitId>(u)));
    owed += share * numel;
    const bool late = owed > numel / 2;
    if (late) owed -= numel;
    set(u, late);
  }
  set(0, share > 0.5);
  set(schedule.units.size() - 1, share > 0.5);
  // Where all would wait the order is another one. The head's gradient is the first that is there.
  if (std::ranges::all_of(schedule.units, &UnitChoice::late)) set(schedule.units.size() - 1, false);
  return changed;
}

void keep_in_memory(Schedule& s) {
  const auto waits_in_memory = [](const UnitChoice& c) { return c.gradient != Place::nvme; };
  if (s.both_orders && std::ranges::all_of(s.units, waits_in_memory)) s.keeps_gradients = true;
}

bool make_room_for_late(Schedule& schedule, const std::function<bool(const Schedule&)>& fits) {
  std::vector<std::size_t> leaving;
  for (const bool late : {true, false})
    for (std::size_t u = 0; u < schedule.units.size(); ++u)
      if (schedule.units[u].late == late && schedule.units[u].state_home == Place::host) leaving.push_back(u);
  const auto without = [&](std::size_t count) {
    Schedule s = schedule;
    for (std::size_t i = 0; i < count; ++i) s.units[leaving[i]].state_home = Place::nvme;
    return s;
  };
  return make_room(schedule, leaving.size(), without, fits);
}

double quickest_share(double seconds_without, const std::function<double(double share)>& seconds) {
  constexpr double notably = 0.998;
  double best = seconds_without, at = 0;
  const auto look = [&](double share) {
    if (share <= 0 || share > 1) return false;
    const double s = seconds(share);
    if (s <= 0 || s > notably * best) return false;
    best = s, at = share;
    return true;
  };
  for (const double share : late_shares) look(share);
  for (const double step : late_steps) {
    while (look(at + step)) {
    }
  }
  return at;
}

}  // namespace sluice
