#include "src/schedule/search.h"

#include <algorithm>
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
  Search(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw) : work_(w), wish_(wish), hw_(hw) {}

  SearchResult run() {
    SearchResult best;
    const Schedule frugal = relieve_drive(fixed(frugal_schedule(work_)));
    best.smallest = run_needs(work_, frugal);
    // Sizes are taken from live bytes; where packing then needs more than the budget, search again with a margin.
    for (double margin : {1.0, 1.01, 1.03, 1.08}) {
      margin_ = margin;
      try_all(best);
      if (best.fits && packs(best)) return best;
      best.fits = false;
    }
    consider(frugal, best);
    if (!packs(best)) best.fits = false;
    return best;
  }

 private:
  using Turn = std::function<void(UnitChoice&)>;

  void try_all(SearchResult& best) const {
    for (int group : groups()) {
      for (const Schedule& rung : ladder(group)) {
        const Schedule base = relieve_drive(rung);
        if (!fits(base)) continue;
        for (bool activations_first : {true, false}) {
          Schedule s = base;
          fill(s, activations_first);
          consider(s, best);
        }
        break;
      }
    }
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
    }
    return s;
  }

  /// Streamed schedules for a group size, fastest first, each needing less memory than the one before.
  std::vector<Schedule> ladder(int group) const {
    Schedule s = frugal_schedule(work_);
    s.group = group;
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

  /// Move things from the drive to host memory, least first, until the drive has room for the rest (or there is none).
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
      for (UnitChoice& c : s.units) move(c);
      s = fixed(s);
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
    const StepPlan plan = build_plan(work_.main_kind(), work_, s);
    const double seconds = simulate(plan, hw_).step_seconds;
    if (best.fits && seconds >= best.predicted_seconds) return;
    best.fits = true;
    best.schedule = s;
    best.predicted_seconds = seconds;
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
  double margin_ = 1;
};

}  // namespace

TierBytes run_needs(const Workload& workload, const Schedule& schedule) {
  return over_kinds(workload, schedule,
                    [&](PlanKind kind) { return arena_needs(build_layout(kind, workload, schedule)); });
}

SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw) {
  return Search(workload, wish, hw).run();
}

}  // namespace sluice
