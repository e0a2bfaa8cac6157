#include "src/train/request/turned_round.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/schedule/both_passes.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/estimate.h"
#include "src/schedule/knobs.h"

namespace sluice {
namespace {

/// One way to use the device's memory, and what its steps take.
struct Filled {
  Schedule schedule;
  Recipe recipe;
  double seconds = 0, bound_seconds = 0;
};

/// What is quicker by less is not worth a change.
constexpr double notably = 0.998;
/// Who takes no longer than its bound by this factor is not changed any more.
constexpr double at_bound = 1.005;

class Turning {
 public:
  Turning(const Prepared& run, const ScheduleWish& wish)
      : work_(run.workload),
        wish_(wish),
        hw_(run.profile),
        estimator_(run.workload, run.profile, wish.pipeline),
        recipe_(run.search.recipe),
        turned_(fixed(run.search.schedule, wish)),
        waiting_seconds_(run.search.predicted_seconds) {
    for (const double margin : {1.0, 1.01, 1.03, 1.08}) cooks_.emplace_back(work_, wish_, &hw_, margin);
    recipe_.update_ahead = false;
    // Bits of activations that are parked in fewer bytes depend on which are.
    const bool may_differ = work_.activation_dtype == ActivationDtype::exact && wish_.resident != true;
    const auto waits_on_device = [](const UnitChoice& c) { return c.gradient == Place::device; };
    if (!may_differ || std::ranges::none_of(turned_.units, waits_on_device)) return;
    turned_.waiting = run.search.schedule.units;
    for (UnitChoice& c : turned_.waiting)
      if (std::exchange(c.resident, false) && wish_.held != false) c.held = true;
  }

  std::optional<Filled> quickest() {
    std::optional<Filled> best;
    const auto improves = [&](std::optional<Filled> f) {
      if (!f || (best && f->seconds > notably * best->seconds) || !waits_as_well(f->schedule)) return false;
      best = std::move(f);
      return true;
    };
    for (const Recipe& recipe : recipes()) improves(filled(turned_, recipe, 0));
    if (!best) return best;
    if (!turned_.waiting.empty())
      for (const Change& knob : knobs())
        for (bool helps = true; helps && !is_at_bound(*best);) {
          Schedule changed = best->schedule;
          helps = knob(changed) && improves(as_it_is_or_filled(fixed(changed, wish_), *best));
        }
    if (!wish_.mixes || is_at_bound(*best)) return best;
    const Filled alone = *best;
    quickest_share(alone.seconds, [&](double late) {
      std::optional<Filled> f = filled(alone.schedule, alone.recipe, late);
      const double seconds = f ? f->seconds : 0;
      improves(std::move(f));
      return seconds;
    });
    return best;
  }

 private:
  std::vector<Recipe> recipes() const {
    if (turned_.waiting.empty()) return {recipe_};
    std::vector<Recipe> list;
    Recipe r = recipe_;
    r.spilled = Saved::recompute;
    for (const bool balanced : {true, false})
      for (const bool activations_first : {true, false}) {
        r.balanced = balanced;
        r.activations_first = activations_first;
        if (!balanced || !wish_.recompute || wish_.recompute == Recompute::optimal) list.push_back(r);
      }
    return list;
  }

  /// Of both orders, and may be worth more to steps that do not wait.
  std::vector<Change> knobs() const {
    return {prefetch_changed(1),    lag_changed(1),          tiles_in_flight_changed(1),
            tiles_scaled(work_, 1), tiles_scaled(work_, -1), lag_changed(-1)};
  }
  static bool is_at_bound(const Filled& f) { return f.seconds < at_bound * f.bound_seconds; }
  bool waits_as_well(const Schedule& s) const {
    return estimator_.exact(s.ahead()).step_seconds <= as_good_as * waiting_seconds_;
  }

  /// With as little room to spare as packing takes, and what lies in host memory left there if it can. None where there
  /// is no room, and of what has been looked at before.
  std::optional<Filled> filled(const Schedule& like, const Recipe& recipe, double late) {
    for (const bool makes_room : {false, true})
      for (const Cook& cook : cooks_) {
        Filled f{like, recipe};
        Schedule& s = f.schedule;
        spread_late(work_, s, late);
        if (!s.waiting.empty()) fill(s, recipe, cook, makes_room);
        if (!cook.fits(s)) break;  // nor with more to spare
        if (std::ranges::find(seen_, s) != seen_.end()) continue;
        seen_.push_back(s);
        if (!within(run_needs(work_, s), work_.budget_bytes)) continue;
        return priced(std::move(f));
      }
    return std::nullopt;
  }

  std::optional<Filled> as_it_is_or_filled(const Schedule& s, const Filled& before) {
    if (within(run_needs(work_, s), work_.budget_bytes)) return priced({s, before.recipe});
    return filled(s, before.recipe, 0);
  }
  Filled priced(Filled f) const {
    const StepEstimate e = estimator_.exact(f.schedule);
    f.seconds = e.step_seconds;
    f.bound_seconds = e.bound_seconds;
    return f;
  }

  void fill(Schedule& s, const Recipe& recipe, const Cook& cook, bool makes_room) const {
    cook.empty_device(s);
    // The waiting steps' chain is another one.
    if (!recipe.balanced && !wish_.recompute)
      for (UnitChoice& c : s.units) {
        c.core.reset();
        c.sweep = 0;
      }
    if (makes_room) clear_host(s, cook);
    cook.fill_device(s, recipe);
  }

  /// As few states as possible leave host memory, then parameters, in steps of both orders.
  static void clear_host(Schedule& s, const Cook& cook) {
    std::vector<std::pair<std::size_t, Place UnitChoice::*>> leaving;
    for (Place UnitChoice::*home : {&UnitChoice::state_home, &UnitChoice::parameter_home})
      for (std::size_t u = 0; u < s.units.size(); ++u)
        if (s.units[u].*home == Place::host) leaving.emplace_back(u, home);
    const auto without = [&](std::size_t count) {
      Schedule t = s;
      for (const auto& [u, home] : std::span(leaving).first(count)) t.units[u].*home = t.waiting[u].*home = Place::nvme;
      return t;
    };
    make_room(s, leaving.size(), without, [&](const Schedule& t) { return cook.fits(t); });
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
  Estimator estimator_;
  Recipe recipe_;
  Schedule turned_;
  double waiting_seconds_;
  std::deque<Cook> cooks_;  ///< by what they leave to spare
  std::vector<Schedule> seen_;
};

}  // namespace

SearchResult turned_round(const Prepared& run, const ScheduleWish& wish) {
  SearchResult turned = run.search;
  std::optional<Filled> best = Turning(run, wish).quickest();
  turned.fits = best.has_value();
  if (!best) return turned;
  turned.schedule = std::move(best->schedule);
  turned.recipe = best->recipe;
  turned.needs = run_needs(run.workload, turned.schedule);
  turned.predicted_seconds = best->seconds;
  turned.bound_seconds = best->bound_seconds;
  turned.drive_write_bytes = byte_law_of_all(run.workload, turned.schedule).nvme_write;
  return turned;
}

}  // namespace sluice
