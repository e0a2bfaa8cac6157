#include "src/schedule/quick.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "offload/parallel.h"
#include "src/schedule/both_passes.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/smallest.h"

namespace sluice {
namespace {

constexpr double margin_at_first = 1.01;
constexpr int tries_max = 4;
/// Of a sample: it is simulated in a second.
constexpr double transfers_max = 100'000;

/// Of many, two: one by one and all together. Those of a pipeline, whose bubble grows with them, stay small, unless the
/// device has no room for parameters and sums of gradients, which then come and go with every group.
std::vector<int> few_groups(const Workload& w, const ScheduleWish& wish, bool is_exact) {
  std::vector<int> groups = open_groups(w, wish);
  if (groups.size() <= 2) return groups;
  if (w.stages() == 1 || is_exact) return {groups.front(), groups.back()};
  double parameters = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u)
    parameters += static_cast<double>(w.full_numel(static_cast<UnitId>(u)));
  constexpr double sum_bytes = 4, room_beside = 1.2;
  const double of_stage = parameters / w.stages() * (static_cast<double>(dtype_bytes(w.dtype)) + sum_bytes);
  const auto device = static_cast<double>(w.budget_bytes[static_cast<std::size_t>(Tier::device)]);
  if (room_beside * of_stage < device) return {groups.front(), groups[1]};
  /// The largest of which there are so many.
  const auto largest = [&](int count) {
    const auto too_large = std::ranges::find_if(groups, [&](int g) { return count * g > w.micro_batches; });
    return *(too_large == groups.begin() ? too_large : too_large - 1);
  };
  const int few = largest(4 * w.stages()), more = largest(8 * w.stages());
  return few == more ? std::vector{few} : std::vector{more, few};
}

/// Schedules of the sample by recipes with this group and order of updates: the one that is wanted, or of the two that
/// give room on the device in turn.
std::vector<Cook::Dish> dishes(const Sample& sample, const ScheduleWish& wish, int group, bool update_ahead,
                               const QuickLook& look, const HardwareProfile& hw, Sample::Kind kind,
                               std::atomic<bool>& leaves_out) {
  Schedule like;
  like.group = group;
  like.pipeline = wish.pipeline;
  ScheduleWish own = wish;
  own.group = group;
  const Workload w = sample.with_room(like, kind);
  const bool balances = look.only != nullptr && look.only->balanced;
  const Cook cook(w, own, sample.is_whole() || balances ? &hw : nullptr, look.margin,
                  sample.is_whole() ? Cook::no_limit : transfers_max);
  const Recipe first{group, update_ahead, true, Saved::recompute, balances};
  Recipe second = first;
  second.activations_first = false;
  const std::optional<Schedule> base = cook.base(group, update_ahead);
  if (!base) {
    if (cook.leaves_out(first)) leaves_out = true;
    if (!sample.is_whole()) return {};
    const std::optional<Schedule> frugal = FrugalFamily(w, own).fit(budgets_of(w));
    return frugal ? std::vector<Cook::Dish>{{first, *frugal}} : std::vector<Cook::Dish>{};
  }
  std::vector<Cook::Dish> list;
  for (const Recipe& recipe : {first, second}) {
    if (look.only != nullptr && recipe.activations_first != look.only->activations_first) continue;
    list.push_back({recipe, cook.follow(recipe, *base)});
    if (sample.is_whole()) break;
  }
  return list;
}

/// Whether the device has room for the sums of gradients, the boundaries and the blocks of all units, as a sample of
/// that kind takes for granted.
bool keeps(const Schedule& s) {
  return std::ranges::all_of(s.units, [](const UnitChoice& c) {
    return std::max({c.accumulator, c.boundary, c.blocks}) == Place::device;
  });
}

/// A plan of more ops is not simulated as a whole.
constexpr double ops_to_balance = 600'000;
/// What is slower by more does not become the quickest by bringing activations further ahead.
constexpr double worth_another = 1.05;

/// What is best for a few layers is not for many: activations are balanced on the whole, and the whole simulated.
void balance_whole(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw, QuickSchedule& quick,
                   TierBytes& needs) {
  const bool is_open = !wish.recompute || wish.recompute == Recompute::optimal;
  if (w.stages() > 1 || w.inference || !is_open || expected_ops(w) > ops_to_balance) return;
  const Estimator estimator(w, hw, wish.pipeline);
  double least = estimator.exact(quick.schedule).step_seconds;
  for (const double margin : {1.0, margin_at_first}) {
    Schedule s = quick.schedule;
    const Cook cook(w, wish, &hw, margin);
    cook.balance_activations(s);
    cook.fill_gradients(s);
    if (s == quick.schedule || !within(run_needs(w, s), w.budget_bytes)) continue;
    // Where much is parked it takes more than one micro-batch's time to come back.
    for (const int ahead : {1, 2, 4}) {
      s.activations_ahead = ahead;
      const TierBytes takes = run_needs(w, s);
      if (!within(takes, w.budget_bytes)) return;
      const StepEstimate e = estimator.exact(s);
      if (e.step_seconds > worth_another * least) return;
      if (e.step_seconds >= least) continue;
      least = e.step_seconds;
      quick = {s, quick.recipe, e};
      quick.recipe.balanced = true;
      needs = takes;
    }
    return;
  }
}

/// Of updates in the backward pass: which of them come ahead of the forward pass, where that is quicker. What those
/// bring comes in time only where it is fetched early. Told by the whole, or where that takes long by its sample, in
/// which as many are late.
void mix_whole(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw, QuickSchedule& quick,
               TierBytes& needs) {
  if (!wish.mixes || quick.schedule.update_ahead) return;
  const Estimator estimator(w, hw, wish.pipeline);
  const bool is_short = expected_ops(w) <= ops_to_balance;
  const Workload few = is_short ? w : estimator.sample().workload(estimator.sample().lengths(quick.schedule).few);
  const auto estimated = [&](const Schedule& whole, double share) {
    Schedule s = is_short ? whole : estimator.sample().of(whole);
    spread_late(few, s, share);
    return is_short ? estimator.exact(s) : estimator.of_sample(s);
  };
  const Schedule found = quick.schedule;
  double least = estimated(found, 0).step_seconds;
  for (const int prefetch : {found.prefetch, found.prefetch + 1}) {
    if (wish.prefetch && prefetch != *wish.prefetch) continue;
    Schedule s = found;
    s.prefetch = prefetch;
    keep_in_memory(s);
    const double share = quickest_share(least, [&](double late) {
      spread_late(w, s, late);
      const double seconds = estimated(s, late).step_seconds;
      return seconds < least && within(run_needs(w, s), w.budget_bytes) ? seconds : 0;
    });
    if (share == 0) continue;
    spread_late(w, s, share);
    quick.estimate = estimated(s, share);
    quick.schedule = s;
    needs = run_needs(w, s);
    least = quick.estimate.step_seconds;
  }
}

/// A few layers have room for one more or one less: how many of all have is found on the whole, for parameters that are
/// fetched one or two units ahead. False where it still does not fit.
bool refilled(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw, double margin,
              QuickSchedule& quick, TierBytes& needs) {
  if (w.stages() > 1 || w.inference) return false;
  const Estimator estimator(w, hw, wish.pipeline);
  const Schedule found = quick.schedule;
  bool fits = false;
  for (const int prefetch : {1, 2}) {
    Schedule s = found;
    s.prefetch = prefetch;
    Cook(w, wish, nullptr, margin).fill_device_anew(s, quick.recipe);
    const TierBytes takes = run_needs(w, s);
    if (!within(takes, w.budget_bytes)) continue;
    const StepEstimate e = estimator.of_sample(estimator.sample().of(s));
    if (fits && e.step_seconds >= quick.estimate.step_seconds) break;
    fits = true;
    quick = {std::move(s), quick.recipe, e};
    needs = takes;
  }
  return fits;
}

SearchResult result_of(const Workload& w, const QuickSchedule& found, const TierBytes& needs) {
  return {found.schedule,
          true,
          found.recipe,
          needs,
          found.estimate.step_seconds,
          found.estimate.bound_seconds,
          w.inference ? 0 : byte_law_of_all(w, found.schedule).nvme_write};
}

}  // namespace

double excess(const TierBytes& needs, const std::array<std::uint64_t, 3>& budget_bytes) {
  double most = 1;
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme})
    if (const std::uint64_t budget = budget_bytes[static_cast<std::size_t>(t)]; budget > 1)
      most = std::max(most, static_cast<double>(needs.of(t)) / static_cast<double>(budget));
  return most;
}

std::optional<QuickSchedule> quick_schedule(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw,
                                            const QuickLook& look) {
  const Estimator estimator(w, hw, wish.pipeline);
  const bool ahead = open_updates(w, wish).front();
  const std::vector<int> groups =
      look.only != nullptr ? std::vector{look.only->group} : few_groups(w, wish, estimator.is_exact());
  std::vector<std::optional<QuickSchedule>> found(groups.size());
  std::atomic<bool> too_long = false;
  std::mutex telling;
  int tried = 0;
  const auto tell = [&](double seconds) {
    if (!look.watch) return;
    const std::lock_guard lock(telling);
    look.watch(++tried, seconds);
  };
  parallel_for(groups.size(), [&](std::size_t i) {
    for (const Sample::Kind kind : {Sample::Kind::keeping, Sample::Kind::streaming}) {
      if (kind == Sample::Kind::streaming && (estimator.is_exact() || (found[i] && keeps(found[i]->schedule)))) return;
      for (Cook::Dish& dish : dishes(estimator.sample(), wish, groups[i], ahead, look, hw, kind, too_long)) {
        const StepEstimate e = estimator.of_sample(dish.schedule);
        tell(e.step_seconds);
        if (!found[i] || e.step_seconds < found[i]->estimate.step_seconds)
          found[i] = QuickSchedule{std::move(dish.schedule), dish.recipe, e};
      }
    }
  });
  if (look.leaves_out != nullptr) *look.leaves_out = too_long;
  std::optional<QuickSchedule> best;
  for (std::optional<QuickSchedule>& f : found)
    if (f && (!best || f->estimate.step_seconds < best->estimate.step_seconds)) best = std::move(f);
  if (best) best->schedule = estimator.sample().whole(best->schedule);
  return best;
}

SearchResult search_quickly(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw,
                            const SearchWatch& watch) {
  if (Sample(w, wish.pipeline).is_whole()) return search_schedule(w, wish, hw, watch);
  double margin = margin_at_first, best_seconds = 0;
  int tried = 0;
  const SearchWatch count = [&](int, double seconds) {
    best_seconds = tried == 0 ? seconds : std::min(best_seconds, seconds);
    watch(++tried, best_seconds);
  };
  std::optional<Recipe> best;  // of the sample, whose schedule the whole had no room for
  for (int i = 0; i < tries_max; ++i) {
    QuickLook look{.margin = margin, .only = best ? &*best : nullptr, .watch = watch ? count : SearchWatch()};
    std::optional<QuickSchedule> quick = quick_schedule(w, wish, hw, look);
    look.only = nullptr;
    if (!quick && best) quick = quick_schedule(w, wish, hw, look);
    if (!quick) break;
    best = quick->recipe;
    TierBytes needs = run_needs(w, quick->schedule);
    if (!within(needs, w.budget_bytes) && !refilled(w, wish, hw, margin, *quick, needs)) {
      margin *= margin_at_first * excess(needs, w.budget_bytes);
      continue;
    }
    balance_whole(w, wish, hw, *quick, needs);
    mix_whole(w, wish, hw, *quick, needs);
    return result_of(w, *quick, needs);
  }
  // Where budgets are nearly the smallest a sample does not tell. Of a pipeline that would take minutes.
  if (w.stages() > 1) return {};
  const std::optional<Schedule> frugal = FrugalFamily(w, wish).fit(budgets_of(w));
  if (!frugal) return {};
  const Estimator estimator(w, hw, wish.pipeline);
  const Recipe recipe{frugal->group, frugal->update_ahead, false, Saved::recompute};
  return result_of(w, {*frugal, recipe, estimator.of_sample(estimator.sample().of(*frugal))}, run_needs(w, *frugal));
}

}  // namespace sluice
