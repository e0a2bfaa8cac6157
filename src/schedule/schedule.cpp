#include "src/schedule/schedule.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "sluice/status.h"

namespace sluice {

std::vector<MicroBatchGroup> micro_batch_groups(const Workload& workload, const Schedule& schedule, PlanKind kind) {
  const int sum = kind == PlanKind::train ? workload.micro_batches_of_sum() : workload.micro_batches;
  const int slices = workload.slices();
  const int group = kind == PlanKind::decode ? 1 : std::clamp(schedule.group - schedule.group % slices, slices, sum);
  std::vector<MicroBatchGroup> groups;
  for (int first = 0; first < workload.micro_batches; first += sum)
    for (int at = first; at < first + sum; at += group) {
      const int end = std::min(at + group, first + sum);
      groups.push_back({at, end, end == first + sum});
    }
  return groups;
}

std::uint64_t tile_limit(const Workload& workload) {
  const std::uint64_t device = workload.budget_bytes[static_cast<std::size_t>(Tier::device)];
  std::uint64_t limit = 1u << 24;
  while (limit < (1u << 26) && 4 * 2 * limit <= device / 400) limit *= 2;
  return limit;
}

std::uint64_t tile_for(const Workload& workload, std::uint64_t tile_min, std::uint64_t tiles_max) {
  std::uint64_t total = 0;
  for (std::size_t u = 0; u < workload.model->units.size(); ++u) total += workload.shard_numel(static_cast<UnitId>(u));
  std::uint64_t tile = tile_min;
  const std::uint64_t limit = tile_limit(workload);
  total /= workload.stages();
  while (tile < limit && total / tile > tiles_max) tile *= 2;
  return tile;
}

std::vector<UnitId> cut_evenly(const Workload& workload, int places) {
  const std::vector<UnitSpec>& units = workload.model->units;
  const std::size_t count = units.size(), parts = static_cast<std::size_t>(places);
  SLUICE_CHECK(parts >= 1 && parts <= count, "(%zu places, %zu units)", parts, count);
  // FLOP of the units before each.
  std::vector<double> before(count + 1);
  for (std::size_t u = 0; u < count; ++u) {
    const SublayerCost cost =
        sublayer_cost(*workload.model, units[u], workload.shape, workload.dtype, *workload.kernels);
    before[u + 1] = before[u] + cost.forward_flop + cost.backward_flop;
  }
  // least[p][u]: of the sum of squares of p places that have the units before u.
  constexpr double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(parts + 1, std::vector<double>(count + 1, none));
  std::vector<std::vector<std::size_t>> from(parts + 1, std::vector<std::size_t>(count + 1));
  least[0][0] = 0;
  for (std::size_t p = 1; p <= parts; ++p)
    for (std::size_t end = p; end <= count; ++end)
      for (std::size_t first = p - 1; first < end; ++first) {
        const double flop = before[end] - before[first], sum = least[p - 1][first] + flop * flop;
        if (sum < least[p][end]) std::tie(least[p][end], from[p][end]) = std::tuple(sum, first);
      }
  std::vector<UnitId> cut(parts - 1);
  for (std::size_t p = parts, end = count; p > 1; --p) cut[p - 2] = static_cast<UnitId>(end = from[p][end]);
  return cut;
}

bool sums_where_it_waits(const Workload& workload, const Schedule& schedule, UnitId unit) {
  const UnitChoice& c = schedule.units[static_cast<std::size_t>(unit)];
  return schedule.stores_gradient(unit) && c.gradient == Place::device && c.accumulator == Place::device &&
         workload.data_ranks() == 1 && workload.reduction == Reduction::last && !workload.rounds_gradients();
}

bool parks_sums(const Workload& workload, const Schedule& schedule) {
  return !workload.inference && schedule.group < workload.micro_batches_of_sum() &&
         std::ranges::any_of(schedule.units, [](const UnitChoice& c) { return c.accumulator != Place::device; });
}

Schedule frugal_schedule(const Workload& workload, const PipelineChoice& pipeline) {
  Schedule s;
  if (workload.stages() > 1) {
    s.pipeline = pipeline;
    s.cut = cut_evenly(workload, workload.stages() * pipeline.chunks);
  }
  s.group = workload.slices();
  s.prefetch = 0;
  s.lag = 0;
  s.tiles_in_flight = 1;
  s.hold = false;
  s.tile_numel = tile_for(workload, 1u << 16, 4096);
  UnitChoice c;
  c.parameter_home = c.state_home = c.gradient = c.accumulator = c.boundary = c.blocks = Place::nvme;
  c.saved = Saved::recompute;
  s.units.assign(workload.model->units.size(), c);
  return s;
}

}  // namespace sluice
