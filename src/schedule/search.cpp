#include "src/schedule/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/parallel.h"
#include "sluice/status.h"
#include "src/schedule/both_passes.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/estimate.h"
#include "src/schedule/knobs.h"
#include "src/schedule/stages.h"

namespace sluice {
namespace {

/// Arenas are a little larger than what is alive in them. Where budgets are so much above, packing is no question.
constexpr double roomy = 1.25;
constexpr std::array margins{1.0, 1.01, 1.03, 1.08};
/// Predicted times that are no more apart than this are equal.
constexpr double equal_time = 1.005;
/// What writes less to the drive than this part is worth it among those.
constexpr double notably_less = 0.9;
/// What is slower than the best by more than this is not looked at again.
constexpr double near_best = 1.02;
/// What is slower by no more, and has other groups or saves nothing, may be faster once its knobs are turned.
constexpr double worth_polishing = 1.05;
/// Ops that are simulated to turn single knobs of a schedule, and for how few tries it is not begun.
constexpr std::size_t ops_to_polish = 500'000;
constexpr int tries_min = 6;
/// Who updates in the backward pass and is slower than the best by no more may be quicker with updates in both passes:
/// at best both take as long, where one takes half as long as the other.
constexpr double worth_mixing = 1.5;
/// In less of a step's time all that moves is done in the backward pass, whatever else is there.
constexpr double worth_moving = 0.3;
/// Changes ahead of the others: of which updates come in which pass.
constexpr std::size_t mixing = late_shares.size() + late_steps.size() + 2;
constexpr std::size_t finalists_max = 5;  ///< that are predicted exactly where the others are estimated

struct Candidate {
  Recipe recipe;
  Schedule schedule;
  std::vector<std::size_t> changes;  ///< that were made to it, one after the other
  double seconds = 0, bound_seconds = 0;
  std::uint64_t written = 0;
  std::size_t ops = 0;        ///< that were simulated
  double moving_seconds = 0;  ///< of the drive, or of the way to the device or back, where that is more
};

/// One search: the workload, what is fixed, and the knobs that are turned.
class Search {
 public:
  Search(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw, const SearchWatch& watch)
      : work_(w),
        wish_(wish),
        hw_(hw),
        watch_(watch),
        estimator_(w, hw, wish.pipeline),
        cook_(w, wish, &hw),
        changes_(changes()) {}

  SearchResult run() {
    const FrugalFamily family(work_, wish_);
    const std::optional<Schedule> frugal = least_schedule(family);
    if (!frugal) return {};
    if (std::optional<SearchResult> found = best_packed(finalists(candidates()))) return *std::move(found);
    Candidate c;
    c.schedule = family_schedule(family);
    c.recipe.group = c.schedule.group;
    c.recipe.update_ahead = c.schedule.update_ahead;
    c = priced(std::move(c), true);
    return *packed(c, 0);
  }

 private:
  /// Of the family that decides whether a run fits; where budgets are roomy it is not asked.
  std::optional<Schedule> least_schedule(const FrugalFamily& family) const {
    Schedule s = frugal_schedule(work_, wish_.pipeline);
    s.group = open_groups(work_, wish_).back();
    s.update_ahead = open_updates(work_, wish_).front();
    s = fixed(std::move(s), wish_);
    if (within(live_needs(work_, s), work_.budget_bytes, roomy)) return s;
    return family.fit(budgets_of(work_));
  }
  Schedule family_schedule(const FrugalFamily& family) const {
    std::optional<Schedule> s = family.fit(budgets_of(work_));
    SLUICE_CHECK(s.has_value(), "budgets of %llu bytes with room pack",
                 static_cast<unsigned long long>(work_.budget_bytes[0]));
    return *std::move(s);
  }

  void tell(int tried) {
    tried_ += tried;
    if (watch_) watch_(tried_, best_seconds_);
  }

  Candidate priced(Candidate c, bool exact) const {
    const StepEstimate e = exact ? estimator_.exact(c.schedule) : estimator_.estimate(c.schedule);
    c.seconds = e.step_seconds;
    c.bound_seconds = e.bound_seconds;
    c.ops = e.ops;
    c.moving_seconds = 0;
    for (const Resource r : {Resource::drive, Resource::link_down, Resource::link_up})
      c.moving_seconds = std::max(c.moving_seconds, e.resource_seconds[static_cast<std::size_t>(r)]);
    c.written = work_.inference ? 0 : byte_law_of_all(work_, c.schedule).nvme_write;
    return c;
  }
  /// All of them, on all cores.
  void price(std::vector<Candidate>& list, bool exact) {
    tell(static_cast<int>(list.size()));
    parallel_for(list.size(), [&](std::size_t i) { list[i] = priced(std::move(list[i]), exact); });
    for (const Candidate& c : list)
      if (best_seconds_ == 0 || c.seconds < best_seconds_) best_seconds_ = c.seconds;
  }

  std::vector<int> groups() const {
    if (wish_.group) return {*wish_.group};
    const std::vector<int> open = open_groups(work_, wish_);
    std::vector<int> list;
    const int slices = work_.slices();
    for (int g = open.back() / slices; g >= 1; g = g == 1 ? 0 : (g + 1) / 2)
      if (std::ranges::find(open, g * slices) != open.end()) list.push_back(g * slices);
    return list;
  }

  /// Of every group and order of updates what fits, fastest first.
  std::vector<Candidate> candidates() {
    std::vector<Candidate> list;
    std::vector<std::pair<int, bool>> kinds;
    for (const int group : groups())
      for (const bool ahead : open_updates(work_, wish_)) kinds.emplace_back(group, ahead);
    // The first kind alone, so that there soon is an answer.
    for (std::size_t begin = 0; begin < kinds.size(); begin = begin == 0 ? 1 : kinds.size()) {
      const std::size_t end = begin == 0 ? 1 : kinds.size();
      std::vector<std::vector<Cook::Dish>> dishes(end - begin);
      parallel_for(end - begin,
                   [&](std::size_t i) { dishes[i] = cook_.dishes(kinds[begin + i].first, kinds[begin + i].second); });
      std::vector<Candidate> fresh;
      for (const auto& of_kind : dishes)
        for (const Cook::Dish& d : of_kind) fresh.push_back({d.recipe, d.schedule, {}, 0, 0, 0, 0, 0});
      price(fresh, false);
      list.insert(list.end(), std::make_move_iterator(fresh.begin()), std::make_move_iterator(fresh.end()));
    }
    std::ranges::stable_sort(list, {}, &Candidate::seconds);
    return list;
  }

  /// The best with updates in the backward pass, with some of them ahead of the forward pass.
  std::optional<Candidate> mixed_of(const std::vector<Candidate>& all) {
    const auto best = std::ranges::find_if(all, [](const Candidate& c) { return !c.schedule.update_ahead; });
    if (best == all.end() || !may_mix(*best) || best->seconds > worth_mixing * all.front().seconds) return std::nullopt;
    std::vector<Candidate> mixed;
    for (std::size_t i = 0; i < late_shares.size(); ++i) {
      Candidate c = *best;
      if (!changes_[i](c.schedule) || !cook_.fits(c.schedule)) continue;
      c.changes.push_back(i);
      mixed.push_back(std::move(c));
    }
    price(mixed, false);
    if (mixed.empty()) return std::nullopt;
    return *std::ranges::min_element(mixed, {}, &Candidate::seconds);
  }

  /// The best, and who of those that are about as fast writes least, both polished; and who follows them, since
  /// estimates err. In the order in which they are to be taken.
  std::vector<Candidate> finalists(const std::vector<Candidate>& all) {
    std::vector<Candidate> last;
    if (all.empty()) return last;
    const bool is_exact = estimator_.is_exact();
    last.push_back(polished(all.front(), is_exact));
    // The room of saved activations may be worth more to larger tiles, which single changes do not find.
    if (const std::optional<Candidate> lean = without_saved(all.front(), is_exact);
        lean && lean->seconds <= worth_polishing * all.front().seconds)
      last.push_back(polished(*lean, is_exact));
    const double limit = near_best * last.front().seconds;
    const Candidate* thrifty = &all.front();
    for (const Candidate& c : all)
      if (c.seconds <= limit * near_best && c.written < thrifty->written) thrifty = &c;
    if (thrifty->written < all.front().written) last.push_back(polished(*thrifty, is_exact));
    // Where groups are others, other changes help.
    const auto rival = std::ranges::find_if(all, [&](const Candidate& c) {
      return c.schedule.group != all.front().schedule.group && c.seconds <= worth_polishing * all.front().seconds;
    });
    if (rival != all.end() && &*rival != thrifty) last.push_back(polished(*rival, is_exact));
    // And where updates come in both passes.
    if (std::optional<Candidate> mixed = mixed_of(all);
        mixed && mixed->seconds <= worth_polishing * all.front().seconds)
      last.push_back(polished(*std::move(mixed), is_exact));
    const std::size_t most = is_exact ? all.size() : finalists_max;
    for (const Candidate& c : all) {
      const bool is_new = std::ranges::find(last, c.schedule, &Candidate::schedule) == last.end();
      if (is_new && last.size() < most && (c.seconds <= limit || is_exact)) last.push_back(c);
    }
    if (!is_exact) {
      price(last, true);
      add_misjudged(all, last);
    }
    const auto fastest = *std::ranges::min_element(last, {}, &Candidate::seconds);
    const auto rank = [&](const Candidate& c) {
      const bool spares = c.seconds <= equal_time * fastest.seconds &&
                          static_cast<double>(c.written) < notably_less * static_cast<double>(fastest.written);
      return spares ? std::tuple(0, static_cast<double>(c.written), c.seconds) : std::tuple(1, c.seconds, 0.0);
    };
    std::ranges::stable_sort(last, {}, rank);
    // Estimates miss what is small beside the layers that were left out.
    if (!is_exact) {
      Candidate better = polished(last.front(), true);
      if (better.seconds < last.front().seconds) last.insert(last.begin(), std::move(better));
    }
    return last;
  }

  /// Where the best turn out slower than estimated, who was behind them may be faster.
  void add_misjudged(const std::vector<Candidate>& all, std::vector<Candidate>& last) {
    std::vector<Candidate> more;
    const double best = std::ranges::min_element(last, {}, &Candidate::seconds)->seconds;
    for (const Candidate& c : all) {
      if (c.seconds >= best / near_best || more.size() == finalists_max) break;
      if (std::ranges::find(last, c.schedule, &Candidate::schedule) == last.end()) more.push_back(c);
    }
    price(more, true);
    last.insert(last.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }

  /// Which updates come in which pass is asked last: what is best for one pass is known then.
  Candidate polished(Candidate best, bool exact) {
    Climb climb{{best.schedule},
                static_cast<int>(std::min<std::size_t>(ops_to_polish / std::max<std::size_t>(best.ops, 1), 120))};
    if (climb.left < tries_min) return best;
    best = climbed(std::move(best), exact, mixing, knobs(), climb);
    if (!may_mix(best)) return best;
    climb.left = std::max(climb.left, static_cast<int>(mixing));
    Candidate mixed = climbed(best, exact, 0, mixing, climb);
    return mixed.schedule == best.schedule ? best : climbed(std::move(mixed), exact, 0, knobs(), climb);
  }
  /// Whether updates in both passes may gain anything: what moves them has much to do.
  bool may_mix(const Candidate& c) const {
    return wish_.mixes && !c.schedule.update_ahead && c.moving_seconds > worth_moving * c.seconds;
  }

  struct Climb {
    std::vector<Schedule> seen;  ///< and found no better than what was the best then
    int left = 0;                ///< of the tries
  };
  /// Single changes of [begin, end), each kept where it is predicted to help, until none does, the prediction comes to
  /// the bound, or as many have been tried as a person likes to wait for. Two at a time, the first that helps is taken.
  Candidate climbed(Candidate best, bool exact, std::size_t begin, std::size_t end, Climb& climb) {
    std::size_t next = begin, in_vain = 0;  // changes since the last that helped
    while (in_vain < end - begin && climb.left > 0) {
      if (best.seconds < equal_time * best.bound_seconds) return best;
      std::vector<Candidate> tries;
      for (; in_vain < end - begin && tries.size() < 2; next = next + 1 < end ? next + 1 : begin, ++in_vain) {
        Candidate c = best;
        if (!changes_[next](c.schedule)) continue;
        c.schedule = fixed(std::move(c.schedule), wish_);
        if (std::ranges::find(climb.seen, c.schedule) != climb.seen.end()) continue;
        climb.seen.push_back(c.schedule);
        if (!cook_.fits(c.schedule)) cook_.fill_gradients(c.schedule);
        if (!cook_.fits(c.schedule)) continue;
        c.changes.push_back(next);
        tries.push_back(std::move(c));
      }
      climb.left -= static_cast<int>(tries.size());
      price(tries, exact);
      const auto better =
          std::ranges::find_if(tries, [&](const Candidate& c) { return c.seconds <= 0.998 * best.seconds; });
      if (better == tries.end()) continue;
      best = std::move(*better);
      in_vain = 0;
    }
    return best;
  }

  bool saves_by_choice() const {
    return !work_.inference && (!wish_.recompute || wish_.recompute == Recompute::optimal);
  }
  /// The last change is not one of them, where activations are saved by choice: nothing is saved.
  std::size_t knobs() const { return changes_.size() - (saves_by_choice() ? 1 : 0); }

  std::optional<Candidate> without_saved(Candidate c, bool exact) const {
    if (!saves_by_choice()) return std::nullopt;
    Schedule lean = c.schedule;
    changes_.back()(lean);
    lean = fixed(std::move(lean), wish_);
    if (lean == c.schedule || !cook_.fits(lean)) return std::nullopt;
    c.schedule = std::move(lean);
    c.changes.push_back(changes_.size() - 1);
    return priced(std::move(c), exact);
  }

  std::vector<Change> changes() const {
    std::vector<Change> list;
    // Of which updates come in which pass: the first ones.
    const auto mix = [&](auto change) {
      list.push_back([this, change](Schedule& s) {
        if (!wish_.mixes || s.update_ahead || !change(s)) return false;
        keep_in_memory(s);
        return make_room_for_late(s, [&](const Schedule& mixed) { return cook_.fits(fixed(mixed, wish_)); });
      });
    };
    for (const double share : late_shares) mix([this, share](Schedule& s) { return spread_late(work_, s, share); });
    for (const double by : late_steps)
      mix([this, by](Schedule& s) { return spread_late(work_, s, late_share(work_, s) + by); });
    for (const bool head : {false, true})
      mix([head](Schedule& s) {
        UnitChoice& c = head ? s.units.back() : s.units.front();
        c.late = !c.late;
        return !std::ranges::all_of(s.units, &UnitChoice::late);
      });
    for (const Saved place : {Saved::host, Saved::nvme})
      for (const double share : {1.0, 0.5, 0.25})
        list.push_back([this, place, share](Schedule& s) { return cook_.spill(s, place, share); });
    if (!work_.inference && !wish_.update_on_device && device_is_apart(hw_))
      for (const double share : {1.0, 0.5, 0.25, 0.0})
        list.push_back([share](Schedule& s) { return spread_updates(s, share); });
    for (const Change& knob :
         {tiles_scaled(work_, 1), tiles_in_flight_changed(1), prefetch_changed(1), activations_ahead_changed(1),
          tiles_scaled(work_, -1), tiles_in_flight_changed(2), lag_changed(1), tiles_scaled(work_, 2),
          prefetch_changed(-1), lag_changed(-1), tiles_scaled(work_, -2)})
      list.push_back(knob);
    list.push_back([](Schedule& s) { return s.hold = !s.hold, true; });
    for (const bool ahead : {true, false})
      list.push_back([this, ahead](Schedule& s) {
        const bool is_other = s.gradients_ahead != ahead && parks_sums(work_, s);
        if (is_other) s.gradients_ahead = ahead;
        return is_other;
      });
    // Of a pipeline: where its model is cut.
    const auto places = static_cast<std::size_t>(work_.stages() * wish_.pipeline.chunks);
    for (const UnitId by : {2, 1, -1, -2})
      for (std::size_t at = 0; at + 1 < places && work_.stages() > 1; ++at)
        list.push_back([this, at, by](Schedule& s) {
          s.cut[at] += by;
          return check_stages(work_, s).ok();
        });
    if (saves_by_choice())
      list.push_back([](Schedule& s) {
        for (UnitChoice& c : s.units) {
          c.saved = Saved::recompute;
          c.core.reset();
          c.sweep = 0;
        }
        return true;
      });
    return list;
  }

  /// The same recipe and changes with room to spare.
  Candidate remade(const Candidate& c, double margin) const {
    const Cook cook(work_, wish_, &hw_, margin);
    Candidate made = c;
    std::optional<Schedule> s = cook.follow(c.recipe);
    if (!s) return made;
    for (const std::size_t change : c.changes) {
      Schedule changed = *s;
      if (!changes_[change](changed)) continue;
      changed = fixed(std::move(changed), wish_);
      if (cook.fits(changed)) s = std::move(changed);
    }
    made.schedule = *std::move(s);
    return made;
  }

  /// The first that packs, as it is or, where its arenas exceed the budgets, made anew with a margin; or one behind it,
  /// where that has made it slower.
  std::optional<SearchResult> best_packed(const std::vector<Candidate>& list) const {
    std::optional<SearchResult> best;
    for (const Candidate& c : list) {
      if (best && best->predicted_seconds <= equal_time * c.seconds) break;
      for (const double margin : margins) {
        std::optional<SearchResult> found = packed(margin == 1 ? c : remade(c, margin), margin);
        if (!found) continue;
        if (!best || found->predicted_seconds < best->predicted_seconds) best = std::move(found);
        break;
      }
    }
    return best;
  }

  /// Real arenas instead of live bytes.
  std::optional<SearchResult> packed(const Candidate& c, double margin) const {
    const TierBytes needs = run_needs(work_, c.schedule);
    if (margin > 0 && !within(needs, work_.budget_bytes)) return std::nullopt;
    const Candidate final = margin > 1 ? priced(c, true) : c;
    return SearchResult{final.schedule, true, final.recipe, needs, final.seconds, final.bound_seconds, final.written};
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
  const SearchWatch& watch_;
  Estimator estimator_;
  Cook cook_;
  std::vector<Change> changes_;
  int tried_ = 0;
  double best_seconds_ = 0;
};

}  // namespace

bool spread_updates(Schedule& schedule, double share) {
  bool changed = false;
  for (std::size_t u = 0; u < schedule.units.size(); ++u) {
    const auto before = [share](std::size_t units) { return std::floor(share * static_cast<double>(units)); };
    const bool on_device = before(u + 1) > before(u);
    changed |= std::exchange(schedule.units[u].update_on_device, on_device) != on_device;
  }
  return changed;
}

bool device_is_apart(const HardwareProfile& hw) { return hw.device.has_value(); }

TierBytes budgets_of(const Workload& w) {
  TierBytes b;
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme}) {
    const std::uint64_t budget = w.budget_bytes[static_cast<std::size_t>(t)];
    b.of(t) = budget == 0 ? FrugalFamily::unlimited : budget;
  }
  return b;
}

SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw,
                             const SearchWatch& watch) {
  return Search(workload, wish, hw, watch).run();
}

}  // namespace sluice
