#include "src/train/request/turned_round.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "src/schedule/both_passes.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/estimate.h"

namespace sluice {
namespace {

/// One way to use the device's memory, and what its steps take.
struct Filled {
  Schedule schedule;
  Recipe recipe;
  double seconds = 0;
};

class Turning {
 public:
  Turning(const Prepared& run, const ScheduleWish& wish)
      : work_(run.workload),
        wish_(wish),
        hw_(run.profile),
        estimator_(run.workload, run.profile, wish.pipeline),
        recipe_(run.search.recipe),
        turned_(fixed(run.search.schedule, wish)) {
    recipe_.update_ahead = false;
    const auto waits_on_device = [](const UnitChoice& c) { return c.gradient == Place::device; };
    if (std::ranges::any_of(turned_.units, waits_on_device)) turned_.waiting = run.search.schedule.units;
  }

  std::optional<Filled> quickest() const {
    std::optional<Filled> best;
    for (const Recipe& recipe : recipes())
      if (std::optional<Filled> f = filled(recipe, 0); f && (!best || f->seconds < best->seconds)) best = std::move(f);
    if (!best || !wish_.mixes) return best;
    std::optional<Filled> mixed;
    quickest_share(best->seconds, [&](double late) {
      std::optional<Filled> f = filled(best->recipe, late);
      const double seconds = f ? f->seconds : 0;
      if (f && (!mixed || seconds < mixed->seconds)) mixed = std::move(f);
      return seconds;
    });
    return mixed && mixed->seconds < best->seconds ? mixed : best;
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

  /// With as little room to spare as packing takes.
  std::optional<Filled> filled(const Recipe& recipe, double late) const {
    for (const double margin : {1.0, 1.01, 1.03, 1.08}) {
      Filled f{turned_, recipe};
      Schedule& s = f.schedule;
      spread_late(work_, s, late);
      if (!s.waiting.empty()) fill(s, recipe, margin);
      if (!within(run_needs(work_, s), work_.budget_bytes)) continue;
      f.seconds = estimator_.exact(s).step_seconds;
      return f;
    }
    return std::nullopt;
  }

  void fill(Schedule& s, const Recipe& recipe, double margin) const {
    const Cook cook(work_, wish_, &hw_, margin);
    cook.empty_device(s);
    make_room_for_late(s, [&](const Schedule& some) { return cook.fits(some); });
    for (std::size_t u = 0; u < s.units.size(); ++u) s.waiting[u].state_home = s.units[u].state_home;
    cook.fill_device(s, recipe);
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
  Estimator estimator_;
  Recipe recipe_;
  Schedule turned_;
};

}  // namespace

SearchResult turned_round(const Prepared& run, const ScheduleWish& wish) {
  SearchResult turned = run.search;
  std::optional<Filled> best = Turning(run, wish).quickest();
  turned.fits = best.has_value();
  if (!best) return turned;
  const Estimator estimator(run.workload, run.profile, wish.pipeline);
  turned.schedule = std::move(best->schedule);
  turned.recipe = best->recipe;
  turned.needs = run_needs(run.workload, turned.schedule);
  turned.predicted_seconds = best->seconds;
  turned.bound_seconds = estimator.exact(turned.schedule).bound_seconds;
  turned.drive_write_bytes = byte_law_of_all(run.workload, turned.schedule).nvme_write;
  return turned;
}

}  // namespace sluice
