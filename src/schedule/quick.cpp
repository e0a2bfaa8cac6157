#include "src/schedule/quick.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "offload/parallel.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/smallest.h"

namespace sluice {
namespace {

constexpr double margin_at_first = 1.01;
constexpr int tries_max = 4;

/// How many times the budget is taken where that is most.
double excess(const TierBytes& needs, const std::array<std::uint64_t, 3>& budget_bytes) {
  double most = 1;
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme})
    if (const std::uint64_t budget = budget_bytes[static_cast<std::size_t>(t)]; budget > 1)
      most = std::max(most, static_cast<double>(needs.of(t)) / static_cast<double>(budget));
  return most;
}

/// Of many, two: one by one and all together, or, of a long pipeline, whose bubble grows with them, the smallest.
std::vector<int> few_groups(const Workload& w, const ScheduleWish& wish, bool is_exact) {
  std::vector<int> groups = open_groups(w, wish);
  if (groups.size() <= 2) return groups;
  return {groups.front(), w.stages() > 1 && !is_exact ? groups[1] : groups.back()};
}

/// Whether it can be simulated in a few seconds. Transfers of many small tiles are of budgets that leave no room.
bool is_soon_simulated(const Workload& w, const Schedule& s) {
  constexpr double ops_max = 400'000;
  const double groups = std::ceil(w.micro_batches / static_cast<double>(s.group));
  double ops = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    const UnitChoice& c = s.units[u];
    const double tiles = static_cast<double>(w.shard_numel(static_cast<UnitId>(u))) / static_cast<double>(s.tile_numel);
    ops += std::ceil(tiles) * (20 + (c.resident || c.held ? 0 : 2 * groups));
  }
  return ops < ops_max;
}

/// On the sample.
std::optional<Schedule> follow(const Sample& sample, const ScheduleWish& wish, const Recipe& recipe, Sample::Kind kind,
                               double margin) {
  Schedule like;
  like.group = recipe.group;
  like.pipeline = wish.pipeline;
  ScheduleWish own = wish;
  own.group = recipe.group;
  const Workload w = sample.with_room(like, kind);
  std::optional<Schedule> s = Cook(w, own, margin).follow(recipe);
  if (!s && sample.is_whole()) s = FrugalFamily(w, own).fit(budgets_of(w));
  return s && (sample.is_whole() || is_soon_simulated(w, *s)) ? s : std::nullopt;
}

}  // namespace

std::optional<QuickSchedule> quick_schedule(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw,
                                            double margin) {
  const Estimator estimator(w, hw, wish.pipeline);
  const bool ahead = open_updates(w, wish).front();
  const std::vector<int> groups = few_groups(w, wish, estimator.is_exact());
  std::vector<std::optional<QuickSchedule>> found(groups.size());
  parallel_for(groups.size(), [&](std::size_t i) {
    for (const Sample::Kind kind : {Sample::Kind::keeping, Sample::Kind::streaming}) {
      if (found[i] || (estimator.is_exact() && kind == Sample::Kind::streaming)) return;
      for (const bool activations_first : {true, false}) {
        const Recipe recipe{groups[i], ahead, activations_first, Saved::recompute};
        const std::optional<Schedule> s = follow(estimator.sample(), wish, recipe, kind, margin);
        if (!s) break;
        const StepEstimate e = estimator.of_sample(*s);
        if (!found[i] || e.step_seconds < found[i]->estimate.step_seconds) found[i] = QuickSchedule{*s, recipe, e};
        if (estimator.is_exact()) break;
      }
    }
  });
  std::optional<QuickSchedule> best;
  for (std::optional<QuickSchedule>& f : found)
    if (f && (!best || f->estimate.step_seconds < best->estimate.step_seconds)) best = std::move(f);
  if (best) best->schedule = estimator.sample().whole(best->schedule);
  return best;
}

SearchResult search_quickly(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw,
                            const SearchWatch& watch) {
  if (Sample(w, wish.pipeline).is_whole()) return search_schedule(w, wish, hw, watch);
  double margin = margin_at_first;
  for (int i = 0; i < tries_max; ++i) {
    const std::optional<QuickSchedule> quick = quick_schedule(w, wish, hw, margin);
    if (!quick) break;
    const TierBytes needs = run_needs(w, quick->schedule);
    if (!within(needs, w.budget_bytes)) {
      margin *= margin_at_first * excess(needs, w.budget_bytes);
      continue;
    }
    return {quick->schedule,
            true,
            quick->recipe,
            needs,
            quick->estimate.step_seconds,
            quick->estimate.bound_seconds,
            w.inference ? 0 : byte_law_of_all(w, quick->schedule).nvme_write};
  }
  return {};
}

}  // namespace sluice
