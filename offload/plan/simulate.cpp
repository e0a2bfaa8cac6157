#include "offload/plan/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "offload/plan/cost.h"
#include "offload/plan/finish.h"
#include "offload/plan/meetings.h"
#include "offload/plan/program.h"
#include "offload/plan/sharing.h"
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

/// Lanes as servers of one op at a time; running ops progress as a fluid at rates that follow from who else runs. On a
/// windowed lane an op that has been transferred lands a latency later, while the next one is transferred. Members are
/// ranks side by side; the other ranks of a machine do as they do. Members that share anything are a zone: what begins
/// or ends there changes nothing elsewhere, so that a world of many machines costs what its ops cost.
class Simulator {
 public:
  Simulator(std::span<const StepPlan* const> plans, const HardwareProfile& hw, std::uint32_t iterations)
      : hw_(hw),
        mixed_(mixed_rates(hw)),
        meetings_(plans),
        arrived_(meetings_.size() * iterations),
        left_(iterations),
        cores_(hw.cores),
        both_ways_slowdown_(both_ways_slowdown(hw)),
        handoff_seconds_(host_rates(hw).handoff_seconds),
        window_(drive_window_of(hw)) {
    members_.reserve(plans.size());
    for (const StepPlan* plan : plans) {
      members_.emplace_back(*plan, hw, iterations);
      for (std::size_t& left : left_) left += plan->ops.size();
    }
    place_members();
    for (std::size_t m = 0; m < members_.size(); ++m) {
      members_[m].first_lane = lanes_.size();
      for (LaneId l = 0; l < static_cast<LaneId>(members_[m].program.lanes()); ++l) {
        ready_.push_back(lanes_.size());
        zones_[members_[m].zone].lanes.push_back(lanes_.size());
        lanes_.emplace_back();
        lanes_.back().member = m;
        lanes_.back().lane = l;
      }
    }
  }

  struct Iteration {
    Timeline spans;  ///< by op
    double end = 0;
    std::array<double, lane_names.size()> busy{};  ///< seconds per lane kind
  };
  /// Goes on until every op of iteration `last` is done, by all members. What has run ahead of it is remembered.
  void run_to(std::uint32_t last) {
    for (Member& m : members_)
      if (last > 0) m.iterations[last - 1].spans = {};
    start_ready();
    while (left_[last] > 0) {
      SLUICE_CHECK(running_ > 0, "nothing runs at %g s, %zu ops of iteration %u are left", now_, left_[last], last);
      for (const std::size_t zone : changed_) share_zone(zones_[zone]);
      changed_.clear();
      to_next_event();
      start_ready();
    }
  }
  const Iteration& iteration(std::size_t member, std::uint32_t number) const {
    return members_[member].iterations[number];
  }
  /// When all members had ended it.
  double end(std::uint32_t number) const {
    double latest = 0;
    for (const Member& m : members_) latest = std::max(latest, m.iterations[number].end);
    return latest;
  }
  /// Of the ranks of its machine, how many do as this member does.
  int stands_for(std::size_t member) const { return members_[member].stands_for; }
  std::size_t machine(std::size_t member) const { return members_[member].machine; }

 private:
  struct Member {
    Member(const StepPlan& p, const HardwareProfile& hw, std::uint32_t count)
        : plan(p), program(p, count), iterations(count) {
      for (const Lane& lane : p.lanes) on_device.push_back(runs_on_device(lane, hw));
      const CostModel model(p, hw);
      for (const Op& op : p.ops) costs.push_back(model.cost(op));
    }
    const StepPlan& plan;
    Program program;
    std::vector<Iteration> iterations;
    std::vector<OpCost> costs;
    std::vector<bool> on_device;  ///< by lane
    std::size_t first_lane = 0;
    std::size_t machine = 0, link = 0, zone = 0;  ///< whom it shares with: a machine, a way to host memory; either
    int stands_for = 1, stands_for_on_link = 1;
  };
  /// An op whose work is done.
  struct Flight {
    double start, progress_start, lands, requests;
  };
  struct Server {
    std::size_t member = 0;
    LaneId lane = 0;
    std::uint32_t finished = 0;  ///< landed
    std::deque<Flight> flying;   ///< between their transfer and their landing, in order
    double flying_requests = 0;  ///< of those
    bool occupied = false;       ///< its op has started
    bool running = false;        ///< and makes progress
    bool woken = false;          ///< it slept until what it waited for had happened
    double start = 0, progress_start = 0;
    double left = 0;  ///< seconds of work at full speed, at `seen`
    double seen = 0;
    double slowdown = 0;     ///< since then; 0: it has just begun
    double asked = 1;        ///< what the slowdown is to be
    std::uint32_t ends = 0;  ///< how often its end has been foretold: the last one counts
    NodeId blocked_on = no_node;
    std::vector<std::size_t> waiters;  ///< that are blocked on one of its ops
    const OpCost* cost = nullptr;      ///< of the running op
    std::vector<std::size_t> cores;    ///< where it runs, in every rank of the machine
  };
  struct Zone {
    std::vector<std::size_t> machines, links, lanes;
    bool changed = false;  ///< since its resources were shared out
  };
  /// An op ends its work, or one lands.
  struct Event {
    double at;
    std::size_t server;
    std::uint32_t ends;  ///< of the server; 0: a landing
    bool operator>(const Event& o) const { return at > o.at; }
  };

  /// Neighbouring ranks are on one machine, and neighbours among those share a GPU.
  void place_members() {
    const auto on_machine = static_cast<std::size_t>(std::max(1, hw_.ranks));
    const auto on_link = static_cast<std::size_t>(std::max(1, ranks_of_link(hw_)));
    std::map<std::size_t, int> machines, links;
    for (Member& m : members_) {
      const std::size_t rank = m.plan.topology.rank();
      m.machine = members_.size() == 1 ? 0 : rank / on_machine;
      m.link = members_.size() == 1 ? 0 : rank / on_link;
      ++machines[m.machine];
      ++links[m.link];
    }
    std::vector<Member*> by_rank;
    for (Member& m : members_) by_rank.push_back(&m);
    std::ranges::stable_sort(by_rank, {}, [](const Member* m) { return m->plan.topology.rank(); });
    const Member* before = nullptr;
    for (Member* m : by_rank) {
      m->stands_for = std::max(1, static_cast<int>(on_machine) / machines[m->machine]);
      m->stands_for_on_link = std::max(1, static_cast<int>(on_link) / links[m->link]);
      if (before == nullptr || (m->machine != before->machine && m->link != before->link)) zones_.emplace_back();
      m->zone = zones_.size() - 1;
      add_new(zones_.back().machines, m->machine);
      add_new(zones_.back().links, m->link);
      before = m;
    }
  }
  static void add_new(std::vector<std::size_t>& list, std::size_t value) {
    if (list.empty() || list.back() != value) list.push_back(value);
  }

  void record(Member& m, NodeId n, const Flight& flight) {
    const OpId op = m.program.op(n);
    Iteration& of = m.iterations[m.program.iteration(n)];
    of.spans.resize(m.plan.ops.size());
    of.spans[op] = {op, m.program.iteration(n), flight.start, now_};
    of.end = now_;
    --left_[m.program.iteration(n)];
    const Lane& lane = m.plan.lanes[m.plan.ops[op].lane];
    const double transferred = flight.lands - m.costs[op].latency_seconds;
    of.busy[static_cast<std::size_t>(lane.kind)] += transferred - flight.progress_start;
  }

  bool finished(const Member& m, NodeId n) const {
    return lanes_[m.first_lane + m.program.lane(n)].finished >= m.program.stamp(n);
  }

  void start_ready() {
    for (std::size_t i = 0; i < ready_.size(); ++i) start(ready_[i]);
    ready_.clear();
  }

  void start(std::size_t server) {
    Server& s = lanes_[server];
    const Member& m = members_[s.member];
    const auto begun = s.finished + static_cast<std::uint32_t>(s.flying.size());
    if (s.occupied || begun == m.program.lane_nodes(s.lane) || s.flying_requests >= window_) return;
    if (s.blocked_on != no_node && !finished(m, s.blocked_on)) return wait(server);
    const NodeId n = m.program.at(s.lane, begun + 1);
    // A device waits for itself, and no thread wakes.
    s.woken =
        s.woken || (s.blocked_on != no_node && !(m.on_device[s.lane] && m.on_device[m.program.lane(s.blocked_on)]));
    s.blocked_on = no_node;
    for (const Wait& w : m.plan.ops[m.program.op(n)].waits)
      if (const NodeId t = m.program.target(n, w); t != no_node && !finished(m, t)) s.blocked_on = t;
    if (s.blocked_on != no_node) return wait(server);
    s.occupied = true;
    s.start = now_;
    arrive(s, n);
  }

  /// Until the lane of what it is blocked on lands an op.
  void wait(std::size_t server) {
    const Member& m = members_[lanes_[server].member];
    std::vector<std::size_t>& waiters = lanes_[m.first_lane + m.program.lane(lanes_[server].blocked_on)].waiters;
    if (std::ranges::find(waiters, server) == waiters.end()) waiters.push_back(server);
  }

  void arrive(Server& s, NodeId n) {
    const Member& m = members_[s.member];
    const OpId op = m.program.op(n);
    s.cost = &m.costs[op];
    const std::size_t meeting = meetings_.of(s.member, op);
    if (meeting == Meetings::none) return begin(s);
    const std::span<const Meetings::Place> places = meetings_.places(meeting);
    if (++arrived_[m.program.iteration(n) * meetings_.size() + meeting] < places.size()) return;
    for (const Meetings::Place& place : places)
      begin(lanes_[members_[place.member].first_lane + members_[place.member].plan.ops[place.op].lane]);
  }

  void begin(Server& s) {
    s.running = true;
    s.progress_start = s.seen = now_;
    s.left = s.cost->seconds + (s.woken ? handoff_seconds_ : 0);
    s.slowdown = 0;
    s.woken = false;
    ++running_;
    change(s);
  }

  void change(const Server& s) {
    const std::size_t zone = members_[s.member].zone;
    if (!std::exchange(zones_[zone].changed, true)) changed_.push_back(zone);
  }

  /// What happens next, and all that happens at the same time but for rounding.
  void to_next_event() {
    const auto is_past = [&](const Event& e) { return e.ends != 0 && e.ends != lanes_[e.server].ends; };
    while (is_past(events_.top())) events_.pop();
    now_ = std::max(now_, events_.top().at);
    const double at_once = now_ + 1e-12 * std::max(1.0, now_);
    while (!events_.empty() && events_.top().at <= at_once) {
      const Event e = events_.top();
      events_.pop();
      if (is_past(e)) continue;
      if (e.ends != 0) end_work(e.server);
      land(e.server, at_once);
    }
  }

  void end_work(std::size_t server) {
    Server& s = lanes_[server];
    s.running = s.occupied = false;
    ++s.ends;
    const double lands = now_ + s.cost->latency_seconds;
    s.flying.push_back({s.start, s.progress_start, lands, s.cost->flying_requests});
    s.flying_requests += s.cost->flying_requests;
    if (s.cost->latency_seconds > 0) events_.push({lands, server, 0});
    ready_.push_back(server);
    change(s);
  }

  void land(std::size_t server, double until) {
    Server& s = lanes_[server];
    while (!s.flying.empty() && s.flying.front().lands <= until) {
      const NodeId n = members_[s.member].program.at(s.lane, ++s.finished);
      const Flight flight = s.flying.front();
      s.flying.pop_front();
      s.flying_requests = s.flying.empty() ? 0 : s.flying_requests - flight.requests;
      --running_;
      record(members_[s.member], n, flight);
      ready_.push_back(server);
      ready_.insert(ready_.end(), s.waiters.begin(), s.waiters.end());
      s.waiters.clear();
    }
  }

  /// Its members' slowdowns, and from them when their ops end.
  void share_zone(Zone& zone) {
    zone.changed = false;
    at_work_.clear();
    for (const std::size_t i : zone.lanes)
      if (lanes_[i].running) at_work_.push_back(i);
    for (const std::size_t machine : zone.machines) share_machine(machine);
    for (const std::size_t link : zone.links) share_link(link);
    for (const std::size_t i : at_work_) {
      Server& s = lanes_[i];
      if (s.asked == s.slowdown) continue;
      if (s.slowdown > 0) s.left = std::max(0.0, s.left - (now_ - s.seen) / s.slowdown);
      s.seen = now_;
      s.slowdown = s.asked;
      events_.push({now_ + s.left * s.slowdown, i, ++s.ends});
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

  /// Cores, memory and drive. Sets what slowdowns are to be.
  void share_machine(std::size_t machine) {
    int reads = 0, writes = 0, others = 0, flushes = 0;
    cores_.clear();
    memory_.clear();
    const auto works_here = [&](const Server& s) { return members_[s.member].machine == machine; };
    for (const bool teams : {true, false})
      for (const std::size_t i : at_work_)
        if (Server& s = lanes_[i]; works_here(s) && (s.cost->threads > 1) == teams) {
          s.cores.clear();
          if (s.cost->core_seconds <= 0) continue;
          for (int rank = 0; rank < members_[s.member].stands_for; ++rank)
            s.cores.push_back(cores_.add(static_cast<std::size_t>(s.cost->threads), core_use(*s.cost)));
        }
    cores_.settle();
    for (const std::size_t i : at_work_) {
      const Server& s = lanes_[i];
      if (!works_here(s)) continue;
      const OpCost& c = *s.cost;
      const int ranks = members_[s.member].stands_for;
      reads += c.drive == DriveUse::read ? ranks : 0;
      writes += c.drive == DriveUse::write ? ranks : 0;
      others += c.drive == DriveUse::other ? ranks : 0;
      flushes += c.drive == DriveUse::flush ? ranks : 0;
      if (c.seconds > 0) memory_.demand(ranks, c.memory_seconds / c.seconds);
    }
    const double memory_level = memory_.level(1);
    const double held = flushes > 0 ? behind_flush : 1;
    const double read_slow = held * reads * (writes > 0 ? hw_.drive.read_bytes_per_second / mixed_.read : 1);
    const double write_slow = held * writes * (reads > 0 ? hw_.drive.write_bytes_per_second / mixed_.write : 1);
    for (const std::size_t i : at_work_) {
      Server& s = lanes_[i];
      if (!works_here(s)) continue;
      const OpCost& c = *s.cost;
      double slow = c.drive == DriveUse::read    ? read_slow
                    : c.drive == DriveUse::write ? write_slow
                    : c.drive == DriveUse::other ? others
                    : c.drive == DriveUse::flush ? flushes
                                                 : 1;
      if (c.core_seconds > 0) slow = std::max(slow, core_use(c) / core_level(s));
      if (c.seconds > 0) slow = std::max(slow, c.memory_seconds / c.seconds / memory_level);
      s.asked = std::max(1.0, slow);
    }
  }

  /// The way between host memory and a device. Adds to the slowdowns.
  void share_link(std::size_t link) {
    SharedResource &down = down_, &up = up_;
    down.clear();
    up.clear();
    bool downs = false, ups = false;
    const auto works_here = [&](const Server& s) { return members_[s.member].link == link; };
    for (const std::size_t i : at_work_) {
      const Server& s = lanes_[i];
      if (!works_here(s)) continue;
      const OpCost& c = *s.cost;
      downs = downs || c.link_down_seconds > 0;
      ups = ups || c.link_up_seconds > 0;
      if (c.seconds <= 0) continue;
      down.demand(members_[s.member].stands_for_on_link, c.link_down_seconds / c.seconds);
      up.demand(members_[s.member].stands_for_on_link, c.link_up_seconds / c.seconds);
    }
    if (!downs && !ups) return;
    const double down_level = down.level(1), up_level = up.level(1);
    for (const std::size_t i : at_work_) {
      Server& s = lanes_[i];
      if (!works_here(s)) continue;
      const OpCost& c = *s.cost;
      if (c.seconds > 0)
        s.asked =
            std::max({s.asked, c.link_down_seconds / c.seconds / down_level, c.link_up_seconds / c.seconds / up_level});
      if (downs && ups && c.link_down_seconds + c.link_up_seconds > 0)
        s.asked =
            std::max({s.asked, both_ways_slowdown_, both_ways_slowdown_ * c.link_down_seconds / c.seconds / down_level,
                      both_ways_slowdown_ * c.link_up_seconds / c.seconds / up_level});
    }
  }

  const HardwareProfile& hw_;
  MixedRates mixed_;
  Meetings meetings_;
  std::vector<std::uint32_t> arrived_;  ///< [iteration][meeting]
  std::vector<std::size_t> left_;       ///< ops, by iteration
  std::vector<Member> members_;
  std::vector<Server> lanes_;  ///< of all members
  std::vector<Zone> zones_;
  std::vector<std::size_t> changed_;  ///< zones
  std::vector<std::size_t> at_work_;  ///< servers that run in the zone whose resources are being shared out
  std::vector<std::size_t> ready_;    ///< servers that may have something to start
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Cores cores_;
  SharedResource memory_, down_, up_;
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

/// Of the time of a world, and of the machine that it is of: a resource that members share does the work of all, each
/// as often as there are ranks like it; of what each has for itself the busiest counts. Members get what is their
/// machines'.
double world_bound(std::span<const StepPlan* const> plans, const HardwareProfile& hw, const Simulator& simulator,
                   std::vector<Simulation>& members) {
  std::map<std::size_t, ResourceSeconds> machines;
  std::vector<ResourceSeconds> own(plans.size());
  for (std::size_t m = 0; m < plans.size(); ++m) {
    Simulation& sim = members[m];
    sim.bound_seconds = time_bound(*plans[m], hw, &sim.bottleneck, &sim.resource_seconds);
    sim.pass_bound_seconds = pass_bound(*plans[m], hw);
    own[m] = sim.resource_seconds;
  }
  if (plans.size() == 1) return members.front().bound_seconds;
  double bound = 0;
  std::size_t slowest = simulator.machine(0);
  const bool shares_device = hw.ranks_of_device > 1, shares_link = ranks_of_link(hw) > 1;
  for (std::size_t m = 0; m < plans.size(); ++m) {
    const double share = static_cast<double>(simulator.stands_for(m)) / hw.ranks;
    ResourceSeconds& together = machines[simulator.machine(m)];
    for (std::size_t r = 0; r < together.size(); ++r) {
      const auto resource = static_cast<Resource>(r);
      const bool is_link = resource == Resource::link_down || resource == Resource::link_up;
      const bool is_shared = is_link                         ? shares_link
                             : resource == Resource::compute ? shares_device
                                                             : resource != Resource::network;
      together[r] = is_shared ? together[r] + share * own[m][r] : std::max(together[r], own[m][r]);
    }
  }
  for (const auto& [machine, together] : machines)
    for (const Resource r : {Resource::compute, Resource::cores, Resource::memory, Resource::drive})
      if (const double seconds = together[static_cast<std::size_t>(r)]; seconds > bound) {
        bound = seconds;
        slowest = machine;
      }
  for (Simulation& sim : members) {
    sim.resource_seconds = machines[slowest];
    const auto largest = std::ranges::max_element(sim.resource_seconds);
    sim.bottleneck = static_cast<Resource>(largest - sim.resource_seconds.begin());
  }
  return bound;
}

/// Of ranks side by side; the first one's plan says whether iterations follow each other.
WorldSimulation simulate_members(std::span<const StepPlan* const> plans, const HardwareProfile& hw, int iterations) {
  WorldSimulation world;
  world.members.resize(plans.size());
  const bool cyclic = plans.front()->cyclic;
  const std::uint32_t least = cyclic ? static_cast<std::uint32_t>(std::max(iterations, 3)) : 1;
  const std::uint32_t most = cyclic ? least + settling_iterations : 1;
  Simulator simulator(plans, hw, cyclic ? most + 1 : 1);
  world.bound_seconds = world_bound(plans, hw, simulator, world.members);
  std::vector<double> ends;
  while (ends.size() < least || (ends.size() < most && !settled(ends, world.bound_seconds))) {
    const auto number = static_cast<std::uint32_t>(ends.size());
    simulator.run_to(number);
    ends.push_back(simulator.end(number));
  }
  world.end_seconds = ends.back();
  world.step_seconds = steady_seconds(ends, ends.size() == most, world.bound_seconds);
  for (std::size_t m = 0; m < plans.size(); ++m) {
    Simulation& sim = world.members[m];
    const Simulator::Iteration& last = simulator.iteration(m, static_cast<std::uint32_t>(ends.size()) - 1);
    sim.end_seconds = last.end;
    sim.step_seconds = world.step_seconds;
    sim.timeline = last.spans;
    std::array<int, lane_names.size()> lanes{};
    for (const Lane& l : plans[m]->lanes) ++lanes[static_cast<std::size_t>(l.kind)];
    for (std::size_t i = 0; i < lanes.size(); ++i)
      if (lanes[i] > 0 && sim.step_seconds > 0) sim.lane_busy[i] = last.busy[i] / sim.step_seconds / lanes[i];
  }
  return world;
}

}  // namespace

Simulation simulate(const StepPlan& plan, const HardwareProfile& hw, int iterations) {
  if (!plan.ops.empty()) return simulate_members(std::array{&plan}, hw, iterations).members.front();
  Simulation sim;
  sim.bound_seconds = time_bound(plan, hw, &sim.bottleneck, &sim.resource_seconds);
  sim.pass_bound_seconds = pass_bound(plan, hw);
  return sim;
}

WorldSimulation simulate_world(std::span<const StepPlan* const> members, const HardwareProfile& hw, int iterations) {
  SLUICE_CHECK(!members.empty(), "(no %s)", "members");
  for (const StepPlan* plan : members)
    SLUICE_CHECK(!plan->ops.empty(), "(rank %u does nothing)", plan->topology.rank());
  return simulate_members(members, hw, iterations);
}

WorldSimulation simulate_world(std::span<const StepPlan> members, const HardwareProfile& hw, int iterations) {
  std::vector<const StepPlan*> plans;
  for (const StepPlan& plan : members) plans.push_back(&plan);
  return simulate_world(plans, hw, iterations);
}

}  // namespace sluice
