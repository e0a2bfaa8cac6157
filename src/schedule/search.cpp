#include "src/schedule/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/plan/finish.h"
#include "offload/plan/simulate.h"
#include "src/schedule/build.h"

namespace sluice {
namespace {

TierBytes arena_needs(const StepPlan& plan) {
  TierBytes n;
  for (const Arena& a : plan.arenas) {
    std::uint64_t& slot = a.tier == Tier::device ? n.device : a.tier == Tier::host ? n.host : n.nvme;
    slot = std::max(slot, a.arena_bytes);
  }
  return n;
}

/// What the arenas need at least: the most bytes alive at one point of program order. Packing comes within 2% of it, at
/// a far higher price; the search tries hundreds of schedules.
TierBytes live_needs(const StepPlan& plan) {
  std::vector<std::uint32_t> first(plan.buffers.size(), no_op), last(plan.buffers.size(), 0);
  for (OpId i = 0; i < plan.ops.size(); ++i) {
    for (const Access& a : plan.ops[i].accesses) {
      first[a.buffer] = std::min(first[a.buffer], i);
      last[a.buffer] = i;
    }
  }
  TierBytes most;
  for (const Arena& arena : plan.arenas) {
    std::int64_t live = 0, peak = 0;
    std::vector<std::int64_t> change(plan.ops.size() + 1);
    for (BufferId id = 0; id < plan.buffers.size(); ++id) {
      const Buffer& b = plan.buffers[id];
      if (b.tier != arena.tier || b.rank != arena.rank) continue;
      const auto bytes = static_cast<std::int64_t>(footprint_bytes(b));
      change[b.life == Life::persistent ? 0 : first[id]] += bytes;
      if (b.life != Life::persistent) change[last[id] + 1] -= bytes;
    }
    for (const std::int64_t c : change) peak = std::max(peak, live += c);
    std::uint64_t& slot = arena.tier == Tier::device ? most.device : arena.tier == Tier::host ? most.host : most.nvme;
    slot = std::max(slot, static_cast<std::uint64_t>(peak));
  }
  return most;
}

TierBytes larger(const TierBytes& a, const TierBytes& b) {
  return {std::max(a.device, b.device), std::max(a.host, b.host), std::max(a.nvme, b.nvme)};
}

/// The largest needs over the kinds of plan that a run uses.
template <class Needs>
TierBytes over_kinds(const Workload& workload, const Schedule& schedule, Needs needs) {
  TierBytes n = needs(workload.main_kind());
  if (workload.inference) return n;
  n = larger(n, needs(PlanKind::evaluate));
  return schedule.update_ahead ? larger(n, needs(PlanKind::flush)) : n;
}

/// One search: the workload, what is fixed, and the knobs that are turned.
class Search {
 public:
  Search(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw, const SearchWatch& watch)
      : work_(w), wish_(wish), hw_(hw), watch_(watch) {}

  SearchResult run() {
    SearchResult best;
    const Schedule frugal = most_frugal(best.smallest);
    // Another schedule may pack into a few pages less; what is named as smallest holds all the same.
    const std::uint64_t device = work_.budget_bytes[static_cast<std::size_t>(Tier::device)];
    if (device != 0 && device < best.smallest.device) return best;
    // Sizes are taken from live bytes; where packing then needs more than the budget, search again with a margin.
    for (double margin : {1.0, 1.01, 1.03, 1.08}) {
      margin_ = margin;
      try_all(best);
      if (best.fits) polish(best);
      if (best.fits && packs(best)) return best;
      best.fits = false;
    }
    consider(frugal, best);
    if (!packs(best)) best.fits = false;
    return best;
  }

 private:
  using Turn = std::function<void(UnitChoice&)>;

  /// The most frugal schedule, and the smallest budgets: of the first that fits, else of the smallest, device first.
  Schedule most_frugal(TierBytes& smallest) const {
    std::optional<Schedule> found;
    bool found_fits = false, first = true;
    for (const bool ahead : updates()) {
      Schedule s = frugal_schedule(work_);
      s.update_ahead = ahead;
      s = relieve_drive(fixed(s));
      const TierBytes needs = run_needs(work_, s);
      const auto key = [](const TierBytes& n) { return std::tuple(n.device, n.host, n.nvme); };
      const bool least = first || key(needs) < key(smallest);
      const bool fits_now = within_budgets(needs, 1.0);
      if (least) smallest = needs;
      if (first || (fits_now && !found_fits) || (least && fits_now == found_fits)) {
        found = std::move(s);
        found_fits = fits_now;
      }
      first = false;
      if (fits_now) break;
    }
    return *found;
  }

  void try_all(SearchResult& best) const {
    for (const bool ahead : updates())
      for (const int group : groups())
        for (const Schedule& rung : ladder(group, ahead)) {
          const Schedule base = relieve_drive(rung);
          if (!fits(base)) continue;
          for (const bool activations_first : {true, false}) {
            Schedule s = base;
            fill(s, activations_first);
            consider(s, best);
            if (offload_saved(s, 1)) consider(s, best);
          }
          break;
        }
  }

  /// Single changes, each kept where it is predicted to help, until none does, the prediction comes to the bound, or as
  /// many have been tried as a person likes to wait for.
  void polish(SearchResult& best) const {
    int left = static_cast<int>(std::clamp<std::size_t>(600000 / std::max<std::size_t>(best.ops, 1), 12, 120));
    for (bool improved = true; improved && left > 0;) {
      improved = false;
      for (const Change& change : changes()) {
        if (best.predicted_seconds < 1.005 * best.bound_seconds || left <= 0) return;
        Schedule s = best.schedule;
        if (!change(s)) continue;
        s = fixed(s);
        if (!fits(s)) continue;
        --left;
        const double before = best.predicted_seconds;
        consider(s, best);
        improved = improved || best.predicted_seconds < before;
      }
    }
  }

  /// False if there is nothing to change.
  using Change = std::function<bool(Schedule&)>;
  std::vector<Change> changes() const {
    std::vector<Change> list;
    const auto scale_tiles = [&](int by) {
      list.push_back([this, by](Schedule& s) {
        const std::uint64_t least = tile_for(work_, 1u << 12, 16384);
        const std::uint64_t numel =
            by > 0 ? s.tile_numel << static_cast<unsigned>(by) : s.tile_numel >> static_cast<unsigned>(-by);
        if (numel < least || numel > (1u << 24)) return false;
        s.tile_numel = numel;
        return true;
      });
    };
    const auto shift = [&](int Schedule::*field, int by, int least, int most) {
      list.push_back([=](Schedule& s) {
        const int value = s.*field + by;
        if (value < least || value > most) return false;
        s.*field = value;
        return true;
      });
    };
    if (!work_.inference)
      for (const double share : {1.0, 0.5, 0.25})
        list.push_back([this, share](Schedule& s) { return offload_saved(s, share); });
    if (!work_.inference && !wish_.update_on_device && device_is_apart(hw_))
      for (const double share : {1.0, 0.5, 0.25, 0.0})
        list.push_back([share](Schedule& s) { return spread_updates(s, share); });
    scale_tiles(1);
    shift(&Schedule::tiles_in_flight, 1, 1, 8);
    shift(&Schedule::prefetch, 1, 0, 4);
    scale_tiles(-1);
    shift(&Schedule::tiles_in_flight, 2, 1, 8);
    shift(&Schedule::lag, 1, 0, 4);
    scale_tiles(2);
    shift(&Schedule::prefetch, -1, 0, 4);
    shift(&Schedule::lag, -1, 0, 4);
    scale_tiles(-2);
    list.push_back([](Schedule& s) { return s.hold = !s.hold, true; });
    return list;
  }

  /// Sends the saved activations of a share of the sublayers that recompute to the drive instead.
  bool offload_saved(Schedule& s, double share) const {
    if (work_.inference || wish_.recompute) return false;
    std::vector<UnitChoice*> recomputed;
    for (UnitChoice& c : s.units)
      if (c.saved == Saved::recompute) recomputed.push_back(&c);
    const auto count = static_cast<std::size_t>(std::ceil(share * static_cast<double>(recomputed.size())));
    Schedule before = s;
    for (std::size_t i = 0; i < count; ++i) recomputed[i]->saved = Saved::nvme;
    if (count > 0 && fits(s)) return true;
    s = std::move(before);
    return false;
  }

  bool within_budgets(const TierBytes& n, double margin) const {
    const auto within = [&](Tier t, std::uint64_t bytes) {
      const std::uint64_t budget = work_.budget_bytes[static_cast<std::size_t>(t)];
      return budget == 0 || static_cast<double>(bytes) * margin <= static_cast<double>(budget);
    };
    return within(Tier::device, n.device) && within(Tier::host, n.host) && within(Tier::nvme, n.nvme);
  }

  /// Real arenas instead of live bytes.
  bool packs(SearchResult& best) const {
    best.needs = run_needs(work_, best.schedule);
    return within_budgets(best.needs, 1.0);
  }

  /// The order of optimizer and backward pass; without a clip both are open.
  std::vector<bool> updates() const {
    if (wish_.update_ahead) return {*wish_.update_ahead};
    return work_.inference ? std::vector<bool>{true} : std::vector<bool>{true, false};
  }

  std::vector<int> groups() const {
    if (wish_.group) return {*wish_.group};
    std::vector<int> list;
    for (int g = work_.micro_batches; g >= 1; g = g == 1 ? 0 : (g + 1) / 2) list.push_back(g);
    return list;
  }

  /// The schedule with the user's choices put over it.
  Schedule fixed(Schedule s) const {
    if (wish_.group) s.group = *wish_.group;
    if (wish_.update_ahead) s.update_ahead = *wish_.update_ahead;
    if (wish_.prefetch) {
      s.prefetch = *wish_.prefetch;
      s.lag = std::min(s.prefetch, s.lag);
    }
    for (UnitChoice& c : s.units) {
      if (wish_.recompute) c.saved = *wish_.recompute ? Saved::recompute : Saved::keep;
      if (wish_.activations) c.boundary = *wish_.activations;
      if (wish_.states) c.parameter_home = c.state_home = c.gradient = *wish_.states;
      if (wish_.resident) c.resident = *wish_.resident;
      if (wish_.update_on_device) c.update_on_device = *wish_.update_on_device;
    }
    return s;
  }

  /// Streamed schedules for a group size, fastest first, each needing less memory than the one before.
  std::vector<Schedule> ladder(int group, bool update_ahead) const {
    Schedule s = frugal_schedule(work_);
    s.group = group;
    s.update_ahead = update_ahead;
    s.hold = true;
    s.prefetch = s.lag = 1;
    s.tiles_in_flight = 4;
    s.tile_numel = tile_for(work_, 1u << 18, 2048);
    const auto all = [&s](auto change) {
      for (UnitChoice& c : s.units) change(c);
    };
    all([](UnitChoice& c) {
      c.accumulator = Place::device;
      c.boundary = Place::device;
      c.gradient = Place::host;
    });
    std::vector<Schedule> list;
    const auto add = [&] { list.push_back(fixed(s)); };
    add();
    all([](UnitChoice& c) { c.boundary = Place::host; });
    add();
    all([](UnitChoice& c) { c.accumulator = Place::host; });
    add();
    all([](UnitChoice& c) { c.gradient = Place::nvme; });
    add();
    all([](UnitChoice& c) { c.accumulator = Place::nvme; });
    add();
    all([](UnitChoice& c) { c.boundary = Place::nvme; });
    add();
    s.hold = false;
    add();
    s.tile_numel = tile_for(work_, 1u << 16, 4096);
    s.tiles_in_flight = 2;
    add();
    s.lag = 0;
    add();
    s.prefetch = 0;
    s.tile_numel = tile_for(work_, 1u << 16, 4096);
    s.tiles_in_flight = 1;
    add();
    return list;
  }

  TierBytes estimated_needs(const Schedule& s) const {
    return over_kinds(work_, s, [&](PlanKind kind) { return live_needs(build_ops(kind, work_, s)); });
  }

  bool fits(const Schedule& s) const { return within_budgets(estimated_needs(s), margin_); }

  /// Move things from the drive to host memory, least first and of as few units as it takes, until the drive has room
  /// for the rest (or there is none).
  Schedule relieve_drive(Schedule s) const {
    const std::uint64_t space = work_.budget_bytes[static_cast<std::size_t>(Tier::nvme)];
    const auto off_drive = [](Place& p) {
      if (p == Place::nvme) p = Place::host;
    };
    const std::vector<Turn> moves = {
        [&](UnitChoice& c) { off_drive(c.boundary); },       [&](UnitChoice& c) { off_drive(c.accumulator); },
        [&](UnitChoice& c) { off_drive(c.gradient); },       [&](UnitChoice& c) { off_drive(c.state_home); },
        [&](UnitChoice& c) { off_drive(c.parameter_home); },
    };
    for (const Turn& move : moves) {
      if (space == 0 || estimated_needs(s).nvme <= space) break;
      const auto moved = [&](std::size_t count) {
        Schedule t = s;
        for (std::size_t u = 0; u < count; ++u) move(t.units[u]);
        return fixed(std::move(t));
      };
      std::size_t few = 0, enough = s.units.size();
      std::uint64_t too_much = estimated_needs(s).nvme, little = estimated_needs(moved(enough)).nvme;
      // Units are nearly alike, so a straight line comes close at once.
      for (int guess = 0; guess < 3 && little <= space && enough - few > 1; ++guess) {
        const double share = static_cast<double>(too_much - space) / static_cast<double>(too_much - little);
        const auto ahead = static_cast<std::size_t>(std::ceil(share * static_cast<double>(enough - few)));
        const std::size_t middle = few + std::clamp<std::size_t>(ahead, 1, enough - few - 1);
        const std::uint64_t needs = estimated_needs(moved(middle)).nvme;
        std::tie(needs <= space ? enough : few, needs <= space ? little : too_much) = std::tuple(middle, needs);
      }
      s = moved(enough);
    }
    return s;
  }

  /// Turn a knob for as many units as the budgets allow (a prefix, found by bisection).
  void turn(Schedule& s, const Turn& change) const {
    const auto turned = [&](std::size_t count) {
      Schedule t = s;
      for (std::size_t u = 0; u < count; ++u) change(t.units[u]);
      return t;
    };
    std::size_t low = 0, high = s.units.size();
    if (fits(turned(high))) {
      s = turned(high);
      return;
    }
    while (low + 1 < high) {
      const std::size_t middle = (low + high) / 2;
      (fits(turned(middle)) ? low : high) = middle;
    }
    s = turned(low);
  }

  /// Use what the budgets leave: first what saves most time or traffic per byte.
  void fill(Schedule& s, bool activations_first) const {
    const auto keep = [&] {
      if (!wish_.recompute) turn(s, [](UnitChoice& c) { c.saved = Saved::keep; });
    };
    const auto resident = [&] {
      if (!wish_.resident) turn(s, [](UnitChoice& c) { c.resident = true; });
    };
    if (!wish_.states && work_.inference) {
      turn(s, [](UnitChoice& c) { c.parameter_home = Place::host; });
    } else if (!wish_.states) {
      turn(s, [](UnitChoice& c) { c.gradient = Place::host; });
      turn(s, [](UnitChoice& c) { c.state_home = Place::host; });
      turn(s, [](UnitChoice& c) { c.parameter_home = Place::host; });
    }
    if (activations_first && !work_.inference) keep();
    resident();
    if (!activations_first && !work_.inference) keep();
    if (!wish_.prefetch && s.prefetch == 1) {
      Schedule deeper = s;
      deeper.prefetch = 2;
      if (fits(deeper)) s = deeper;
    }
  }

  void consider(const Schedule& s, SearchResult& best) const {
    if (watch_) watch_(best.fits ? best.predicted_seconds : 0);
    const StepPlan plan = build_plan(work_.main_kind(), work_, s, PackEffort::quick);
    const Simulation predicted = simulate(plan, hw_);
    if (best.fits && predicted.step_seconds > 0.998 * best.predicted_seconds) return;
    best.fits = true;
    best.schedule = s;
    best.ops = plan.ops.size();
    best.predicted_seconds = predicted.step_seconds;
    best.bound_seconds = predicted.bound_seconds;
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
  const SearchWatch& watch_;
  double margin_ = 1;
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

TierBytes run_needs(const Workload& workload, const Schedule& schedule) {
  return over_kinds(workload, schedule,
                    [&](PlanKind kind) { return arena_needs(build_layout(kind, workload, schedule)); });
}

SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw,
                             const SearchWatch& watch) {
  return Search(workload, wish, hw, watch).run();
}

}  // namespace sluice
