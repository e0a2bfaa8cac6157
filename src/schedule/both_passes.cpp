#include "src/schedule/both_passes.h"

#include <utility>

namespace sluice {

double late_share(const Workload& workload, const Schedule& schedule) {
  double late = 0, all = 0;
  for (std::size_t u = 0; u < schedule.units.size(); ++u) {
    const auto numel = static_cast<double>(workload.shard_numel(static_cast<UnitId>(u)));
    all += numel;
    if (schedule.units[u].late) late += numel;
  }
  return late / all;
}

bool spread_late(const Workload& workload, Schedule& schedule, double share) {
  if (schedule.update_ahead || share < 0 || share > 1) return false;
  bool changed = false;
  double owed = 0;  // parameters that were to be late up to here, and are not
  for (std::size_t u = 0; u < schedule.units.size(); ++u) {
    const auto numel = static_cast<double>(workload.shard_numel(static_cast<UnitId>(u)));
    owed += share * numel;
    const bool late = owed > numel / 2;
    if (late) owed -= numel;
    changed |= std::exchange(schedule.units[u].late, late) != late;
  }
  return changed;
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
