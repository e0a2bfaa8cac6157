#include "src/schedule/schedule.h"

#include <algorithm>

namespace sluice {

std::vector<MicroBatchGroup> micro_batch_groups(const Workload& workload, const Schedule& schedule, PlanKind kind) {
  const int sum = kind == PlanKind::train ? workload.micro_batches_of_sum() : workload.micro_batches;
  const int group = kind == PlanKind::decode ? 1 : std::clamp(schedule.group, 1, sum);
  std::vector<MicroBatchGroup> groups;
  for (int first = 0; first < workload.micro_batches; first += sum)
    for (int at = first; at < first + sum; at += group) {
      const int end = std::min(at + group, first + sum);
      groups.push_back({at, end, end == first + sum});
    }
  return groups;
}

std::uint64_t tile_for(const Workload& workload, std::uint64_t tile_min, std::uint64_t tiles_max) {
  std::uint64_t total = 0;
  for (std::size_t u = 0; u < workload.model->units.size(); ++u) total += workload.shard_numel(static_cast<UnitId>(u));
  std::uint64_t tile = tile_min;
  while (tile < (1u << 24) && total / tile > tiles_max) tile *= 2;
  return tile;
}

Schedule frugal_schedule(const Workload& workload) {
  Schedule s;
  s.group = 1;
  s.prefetch = 0;
  s.lag = 0;
  s.tiles_in_flight = 1;
  s.hold = false;
  s.tile_numel = tile_for(workload, 1u << 16, 4096);
  UnitChoice c;
  c.parameter_home = c.state_home = c.gradient = c.accumulator = c.boundary = Place::nvme;
  c.saved = Saved::recompute;
  s.units.assign(workload.model->units.size(), c);
  return s;
}

}  // namespace sluice
