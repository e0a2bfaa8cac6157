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

TierBytes larger(const TierBytes& a, const TierBytes& b) {
  return {std::max(a.device, b.device), std::max(a.host, b.host), std::max(a.nvme, b.nvme)};
}

/// One search: the workload, what is fixed, and the knobs that are turned.
class Search {
 public:
  Search(const Workload& w, const ScheduleWish& wish, const HardwareProfile& hw) : work_(w), wish_(wish), hw_(hw) {}

  SearchResult run() {
    SearchResult best;
    const Schedule frugal = relieve_drive(fixed(frugal_schedule(work_)));
    best.smallest = run_needs(work_, frugal);
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
    if (!best.fits && fits(frugal)) consider(frugal, best);
    return best;
  }

 private:
  using Turn = std::function<void(UnitChoice&)>;

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

  std::uint64_t tile_numel() const {
    std::uint64_t total = 0;
    for (std::size_t u = 0; u < work_.model->units.size(); ++u) total += work_.shard_numel(static_cast<UnitId>(u));
    std::uint64_t tile = 1u << 18;
    while (tile < (1u << 24) && total / tile > 2048) tile *= 2;
    return tile;
  }

  /// Streamed schedules for a group size, fastest first, each needing less memory than the one before.
  std::vector<Schedule> ladder(int group) const {
    Schedule s = frugal_schedule(work_);
    s.group = group;
    s.hold = true;
    s.prefetch = s.lag = 1;
    s.tiles_in_flight = 4;
    s.tile_numel = tile_numel();
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
    s.tile_numel = std::max<std::uint64_t>(1u << 16, s.tile_numel / 4);
    s.tiles_in_flight = 2;
    add();
    s.lag = 0;
    add();
    s.prefetch = 0;
    s.tile_numel = 1u << 16;
    s.tiles_in_flight = 1;
    add();
    return list;
  }

  bool fits(const Schedule& s) const {
    const TierBytes n = run_needs(work_, s);
    const auto within = [&](Tier t, std::uint64_t bytes) {
      const std::uint64_t budget = work_.budget_bytes[static_cast<std::size_t>(t)];
      return budget == 0 || bytes <= budget;
    };
    return within(Tier::device, n.device) && within(Tier::host, n.host) && within(Tier::nvme, n.nvme);
  }

  /// Move things from the drive to host memory, least first, until the drive has room for the rest (or there is none).
  Schedule relieve_drive(Schedule s) const {
    const std::uint64_t space = work_.budget_bytes[static_cast<std::size_t>(Tier::nvme)];
    const auto off_drive = [](Place& p) {
      if (p == Place::nvme) p = Place::host;
    };
    const std::vector<Turn> moves = {
        [&](UnitChoice& c) { off_drive(c.boundary); },
        [&](UnitChoice& c) { off_drive(c.accumulator); },
        [&](UnitChoice& c) { off_drive(c.gradient); },
        [&](UnitChoice& c) { off_drive(c.state_home); },
        [&](UnitChoice& c) { off_drive(c.parameter_home); },
    };
    for (const Turn& move : moves) {
      if (space == 0 || run_needs(work_, s).nvme <= space) break;
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
    best.needs = run_needs(work_, s);
  }

  const Workload& work_;
  const ScheduleWish& wish_;
  const HardwareProfile& hw_;
};

}  // namespace

TierBytes run_needs(const Workload& workload, const Schedule& schedule) {
  TierBytes n = arena_needs(build_layout(workload.main_kind(), workload, schedule));
  if (workload.inference) return n;
  n = larger(n, arena_needs(build_layout(PlanKind::evaluate, workload, schedule)));
  if (schedule.update_ahead) n = larger(n, arena_needs(build_layout(PlanKind::flush, workload, schedule)));
  return n;
}

SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw) {
  return Search(workload, wish, hw).run();
}

}  // namespace sluice
