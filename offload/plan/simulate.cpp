#include "offload/plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "offload/plan/cost.h"
#include "offload/plan/finish.h"
#include "offload/plan/program.h"
#include "offload/plan/work.h"
#include "sluice/status.h"

namespace sluice {
namespace {

using namespace planning;

/// Requests that a drive lane keeps in flight.
double drive_window_of(const HardwareProfile& hw) {
  const std::size_t drives = std::max<std::size_t>(1, hw.drive.stripe_weights.size());
  return static_cast<double>(hw.drive.depth) * static_cast<double>(drives);
}

/// A capacity that is shared max-min fairly: who asks for little gets it, the others get equal parts of the rest.
class SharedResource {
 public:
  /// `users` equal users that each ask for `use` (1: all of a unit).
  void demand(double users, double use) {
    if (use > 0) demands_.push_back({use, users});
  }
  /// What each user can have at most.
  double level(double capacity) {
    std::sort(demands_.begin(), demands_.end());
    double users = 0;
    for (const auto& [use, count] : demands_) users += count;
    for (const auto& [use, count] : demands_) {
      if (use * users >= capacity) return std::max(capacity, 1e-300) / users;
      capacity -= use * count;
      users -= count;
    }
    return 1;
  }

 private:
  std::vector<std::pair<double, double>> demands_;
};

/// Who works on which core. A team, as compute ops have, holds a core per thread and is as slow as the most crowded of
/// them, since its parts are equal and end together; work of one thread goes to the emptiest core.
class Cores {
 public:
  explicit Cores(int cores) : load_(static_cast<std::size_t>(std::max(1, cores))), level_(load_.size()) {}

  void clear() {
    std::fill(load_.begin(), load_.end(), Core{});
    next_ = 0;
  }
  /// Threads that each ask for `use` of a core. Teams come first. Returns a place to ask `level` for.
  std::size_t add(std::size_t threads, double use) {
    if (threads > 1) {
      const std::size_t first = next_;
      for (std::size_t i = 0; i < threads; ++i) load_[(first + i) % load_.size()].add(use);
      next_ = (first + threads) % load_.size();
      return first;
    }
    std::size_t best = 0;
    for (std::size_t i = 1; i < load_.size(); ++i)
      if (load_[i].asked < load_[best].asked) best = i;
    load_[best].add(use);
    return best;
  }
  void settle() {
    for (std::size_t i = 0; i < load_.size(); ++i) level_[i] = load_[i].shared.level(1);
  }
  /// What each of the threads that were added at this place can have at most.
  double level(std::size_t place, std::size_t threads) const {
    double least = 1;
    for (std::size_t i = 0; i < threads; ++i) least = std::min(least, level_[(place + i) % level_.size()]);
    return least;
  }

 private:
  struct Core {
    SharedResource shared;
    double asked = 0;
    void add(double use) {
      shared.demand(1, use);
      asked += use;
    }
  };
  std::vector<Core> load_;
  std::vector<double> level_;
  std::size_t next_ = 0;
};

/// Lanes as servers of one op at a time; running ops progress as a fluid at rates that follow from who else runs. On a
/// windowed lane an op that has been transferred lands a latency later, while the next one is transferred.
class Simulator {
 public:
  Simulator(const StepPlan& plan, const HardwareProfile& hw, std::uint32_t iterations)
      : plan_(plan),
        hw_(hw),
        mixed_(mixed_rates(hw)),
        program_(plan, iterations),
        lanes_(program_.lanes()),
        iterations_(iterations),
        cores_(hw.cores),
        both_ways_slowdown_(both_ways_slowdown(hw)),
        handoff_seconds_(host_rates(hw).handoff_seconds),
        window_(drive_window_of(hw)) {
    for (const Lane& lane : plan.lanes) on_device_.push_back(runs_on_device(lane.kind, hw));
    const CostModel model(plan, hw);
    for (const Op& op : plan.ops) costs_.push_back(model.cost(op));
    for (Iteration& i : iterations_) i.left = plan.ops.size();
  }

  struct Iteration {
    Timeline spans;  ///< by op
    std::size_t left = 0;
    double end = 0;
    std::array<double, lane_names.size()> busy{};  ///< seconds per lane kind
  };
  /// Goes on until every op of iteration `last` is done. What has run ahead of it is remembered.
  const Iteration& run_to(std::uint32_t last) {
    if (last > 0) iterations_[last - 1].spans = {};
    start_ready();
    while (iterations_[last].left > 0) {
      SLUICE_CHECK(running_ > 0, "nothing runs at %g s, %zu ops of iteration %u are left", now_, iterations_[last].left,
                   last);
      advance();
      for (LaneId l = 0; l < static_cast<LaneId>(lanes_.size()); ++l) {
        Server& s = lanes_[l];
        if (s.running && s.left <= 0) {
          s.running = s.occupied = false;
          s.flying.push_back({s.start, s.progress_start, now_ + s.cost->latency_seconds, s.cost->flying_requests});
          s.flying_requests += s.cost->flying_requests;
        }
        while (!s.flying.empty() && s.flying.front().lands <= now_) {
          const NodeId n = program_.at(l, ++s.finished);
          const Flight flight = s.flying.front();
          s.flying.pop_front();
          s.flying_requests = s.flying.empty() ? 0 : s.flying_requests - flight.requests;
          --running_;
          record(n, flight);
        }
      }
      start_ready();
    }
    return iterations_[last];
  }

 private:
  /// An op whose work is done.
  struct Flight {
    double start, progress_start, lands, requests;
  };
  struct Server {
    std::uint32_t finished = 0;  ///< landed
    std::deque<Flight> flying;   ///< between their transfer and their landing, in order
    double flying_requests = 0;  ///< of those
    bool occupied = false;       ///< its op has started
    bool running = false;        ///< and makes progress
    bool woken = false;          ///< it slept until what it waited for had happened
    double start = 0, progress_start = 0;
    double left = 0;  ///< seconds of work at full speed
    double slowdown = 1;
    NodeId blocked_on = no_node;
    const OpCost* cost = nullptr;    ///< of the running op
    std::vector<std::size_t> cores;  ///< where it runs, in every rank of the machine
  };

  void record(NodeId n, const Flight& flight) {
    const OpId op = program_.op(n);
    Iteration& of = iterations_[program_.iteration(n)];
    of.spans.resize(plan_.ops.size());
    of.spans[op] = {op, program_.iteration(n), flight.start, now_};
    of.end = now_;
    --of.left;
    const Lane& lane = plan_.lanes[plan_.ops[op].lane];
    const double transferred = flight.lands - costs_[op].latency_seconds;
    of.busy[static_cast<std::size_t>(lane.kind)] += transferred - flight.progress_start;
  }

  bool finished(NodeId n) const { return lanes_[program_.lane(n)].finished >= program_.stamp(n); }

  void start_ready() {
    for (LaneId l = 0; l < static_cast<LaneId>(lanes_.size()); ++l) {
      Server& s = lanes_[l];
      const auto begun = s.finished + static_cast<std::uint32_t>(s.flying.size());
      if (s.occupied || begun == program_.lane_nodes(l) || s.flying_requests >= window_) continue;
      if (s.blocked_on != no_node && !finished(s.blocked_on)) continue;
      const NodeId n = program_.at(l, begun + 1);
      // A device waits for itself, and no thread wakes.
      s.woken = s.woken || (s.blocked_on != no_node && !(on_device_[l] && on_device_[program_.lane(s.blocked_on)]));
      s.blocked_on = no_node;
      for (const Wait& w : plan_.ops[program_.op(n)].waits)
        if (const NodeId t = program_.target(n, w); t != no_node && !finished(t)) s.blocked_on = t;
      if (s.blocked_on != no_node) continue;
      s.occupied = true;
      s.start = now_;
      begin(l, n);
    }
  }

  void begin(LaneId lane, NodeId n) {
    Server& s = lanes_[lane];
    s.running = true;
    s.progress_start = now_;
    s.cost = &costs_[program_.op(n)];
    s.left = s.cost->seconds + (s.woken ? handoff_seconds_ : 0);
    s.woken = false;
    ++running_;
  }

  /// To the next time that an op ends.
  void advance() {
    set_slowdowns();
    double step = -1, landing = -1;
    for (const Server& s : lanes_) {
      if (s.running && (step < 0 || s.left * s.slowdown < step)) step = s.left * s.slowdown;
      if (!s.flying.empty() && (landing < 0 || s.flying.front().lands < landing)) landing = s.flying.front().lands;
    }
    const bool lands = landing >= 0 && (step < 0 || landing <= now_ + step);
    if (lands) step = std::max(0.0, landing - now_);
    now_ = lands ? std::max(now_, landing) : now_ + step;
    for (Server& s : lanes_) {
      if (!s.running) continue;
      const double rest = s.left - step / s.slowdown;
      // What is within rounding of the end has ended.
      s.left = rest * s.slowdown <= 1e-12 * std::max(1.0, now_) ? 0 : rest;
    }
  }

  /// Of a core, by each of an op's threads.
  static double core_use(const OpCost& c) { return c.core_seconds / c.seconds / c.threads; }

  /// Ranks keep in step, so that an op is as slow as it is where the cores are most crowded.
  double core_level(const Server& s) const {
    double least = 1;
    for (const std::size_t place : s.cores)
      least = std::min(least, cores_.level(place, static_cast<std::size_t>(s.cost->threads)));
    return least;
  }

  void set_slowdowns() {
    SharedResource memory, down, up;
    int reads = 0, writes = 0;
    bool downs = false, ups = false;
    cores_.clear();
    for (const bool teams : {true, false})
      for (Server& s : lanes_)
        if (s.running && s.cost->seconds > 0 && (s.cost->threads > 1) == teams) {
          s.cores.clear();
          for (int rank = 0; rank < hw_.ranks; ++rank)
            s.cores.push_back(cores_.add(static_cast<std::size_t>(s.cost->threads), core_use(*s.cost)));
        }
    cores_.settle();
    for (Server& s : lanes_) {
      if (!s.running) continue;
      const OpCost& c = *s.cost;
      reads += c.drive == DriveUse::read ? hw_.ranks : 0;
      writes += c.drive == DriveUse::write ? hw_.ranks : 0;
      downs = downs || c.link_down_seconds > 0;
      ups = ups || c.link_up_seconds > 0;
      if (c.seconds <= 0) continue;
      memory.demand(hw_.ranks, c.memory_seconds / c.seconds);
      down.demand(ranks_of_link(hw_), c.link_down_seconds / c.seconds);
      up.demand(ranks_of_link(hw_), c.link_up_seconds / c.seconds);
    }
    const double memory_level = memory.level(1);
    const double down_level = down.level(1), up_level = up.level(1);
    const double read_slow = reads * (writes > 0 ? hw_.drive.read_bytes_per_second / mixed_.read : 1);
    const double write_slow = writes * (reads > 0 ? hw_.drive.write_bytes_per_second / mixed_.write : 1);
    for (Server& s : lanes_) {
      if (!s.running) continue;
      const OpCost& c = *s.cost;
      double slow = c.drive == DriveUse::read ? read_slow : c.drive == DriveUse::write ? write_slow : 1;
      if (c.seconds > 0)
        slow = std::max({slow, core_use(c) / core_level(s), c.memory_seconds / c.seconds / memory_level,
                         c.link_down_seconds / c.seconds / down_level, c.link_up_seconds / c.seconds / up_level});
      if (downs && ups && c.link_down_seconds + c.link_up_seconds > 0)
        slow = std::max({slow, both_ways_slowdown_, both_ways_slowdown_ * c.link_down_seconds / c.seconds / down_level,
                         both_ways_slowdown_ * c.link_up_seconds / c.seconds / up_level});
      s.slowdown = std::max(1.0, slow);
    }
  }

  const StepPlan& plan_;
  const HardwareProfile& hw_;
  MixedRates mixed_;
  Program program_;
  std::vector<Server> lanes_;
  std::vector<Iteration> iterations_;
  std::vector<OpCost> costs_;
  std::vector<bool> on_device_;  ///< by lane
  Cores cores_;
  double both_ways_slowdown_, handoff_seconds_, window_;
  double now_ = 0;
  int running_ = 0;  ///< begun and not landed
};

/// Iterations beyond those asked for, where the time between their ends still changes.
constexpr std::uint32_t settling_iterations = 8;
constexpr double settled_within = 1e-3;

double step_at(const std::vector<double>& ends, std::size_t i) { return ends[i] - (i > 0 ? ends[i - 1] : 0); }

/// A first iteration that takes long leaves later ones work that is done already: below the bound is never the end.
bool settled(const std::vector<double>& ends, double bound) {
  const double step = step_at(ends, ends.size() - 1), before = step_at(ends, ends.size() - 2);
  return std::abs(step - before) <= settled_within * step && step >= bound * (1 - settled_within);
}

/// The mean of several where they go to and fro. In the long run no resource does more than its rate, and what of that
/// a few iterations do not show yet is known.
double steady_seconds(const std::vector<double>& ends, bool unsettled, double bound) {
  const std::size_t n = ends.size(), over = n == 1 ? 0 : unsettled ? n / 2 : 1;
  const double step = over == 0 ? ends[0] : (ends[n - 1] - ends[n - 1 - over]) / static_cast<double>(over);
  return std::max(step, bound);
}

}  // namespace

Simulation simulate(const StepPlan& plan, const HardwareProfile& hw, int iterations) {
  Simulation sim;
  sim.bound_seconds = time_bound(plan, hw, &sim.bottleneck, &sim.resource_seconds);
  sim.pass_bound_seconds = pass_bound(plan, hw);
  if (plan.ops.empty()) return sim;
  const std::uint32_t least = plan.cyclic ? static_cast<std::uint32_t>(std::max(iterations, 3)) : 1;
  const std::uint32_t most = plan.cyclic ? least + settling_iterations : 1;
  Simulator simulator(plan, hw, plan.cyclic ? most + 1 : 1);
  std::vector<double> ends;
  while (ends.size() < least || (ends.size() < most && !settled(ends, sim.bound_seconds)))
    ends.push_back(simulator.run_to(static_cast<std::uint32_t>(ends.size())).end);
  const Simulator::Iteration& last = simulator.run_to(static_cast<std::uint32_t>(ends.size()) - 1);
  sim.end_seconds = ends.back();
  sim.step_seconds = steady_seconds(ends, ends.size() == most, sim.bound_seconds);
  sim.timeline = last.spans;
  std::array<int, lane_names.size()> lanes{};
  for (const Lane& l : plan.lanes) ++lanes[static_cast<std::size_t>(l.kind)];
  for (std::size_t i = 0; i < lanes.size(); ++i)
    if (lanes[i] > 0 && sim.step_seconds > 0) sim.lane_busy[i] = last.busy[i] / sim.step_seconds / lanes[i];
  return sim;
}

}  // namespace sluice
