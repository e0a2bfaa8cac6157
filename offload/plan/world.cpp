#include "offload/plan/world.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "offload/plan/program.h"

namespace sluice {
using namespace planning;
namespace {

constexpr BufferId no_buffer = 0xffffffffu;

/// Ranks side by side, executed without time. Of each op it is known how many commits of every member have certainly
/// finished when it starts.
class World {
 public:
  World(std::span<const StepPlan> members, std::size_t limit) : limit_(limit) {
    for (const StepPlan& plan : members) members_.push_back(std::make_unique<Member>(plan, members.size()));
  }

  std::vector<Violation> run() {
    if (!comparable()) return std::move(found_);
    for (std::size_t m = 0; m < members_.size(); ++m)
      for (LaneId l = 0; l < static_cast<LaneId>(members_[m]->lanes.size()); ++l) ready_.emplace_back(m, l);
    while (!ready_.empty() && !full()) {
      const auto [member, lane] = ready_.back();
      ready_.pop_back();
      while (!full() && (try_finish(member, lane) || try_start(member, lane))) {
      }
    }
    if (!full() && found_.empty()) report_stuck();
    if (found_.empty())
      for (const auto& m : members_) check_durable(*m);
    return std::move(found_);
  }

 private:
  using Known = std::span<std::uint16_t>;  ///< per member: its commits that have finished
  struct LaneState {
    std::uint32_t started = 0, finished = 0;
    NodeId blocked_on = no_node;
  };
  struct Member {
    Member(const StepPlan& p, std::size_t world)
        : plan(p),
          program(p, steady_iterations(p)),
          lanes(p.lanes.size()),
          at_start(std::size_t{program.nodes()} * world),
          at_finish(at_start.size()) {
      for (const Op& op : p.ops) {
        commits += op.kind == OpKind::commit ? 1 : 0;
        if (op.collective >= 0 && has_group(p, op)) ++streams[stream_of(op)].numbered;
      }
    }
    /// Collectives of a group, or messages to or from one of its members.
    using StreamKey = std::tuple<std::int32_t, OpKind, std::int32_t>;
    static StreamKey stream_of(const Op& op) {
      return {op.group, is_message(op.kind) ? op.kind : OpKind::all_gather, op.peer};
    }
    struct Stream {
      std::uint32_t numbered = 0, started = 0;  ///< of an iteration, and in all
    };
    const StepPlan& plan;
    Program program;
    std::vector<LaneState> lanes;
    std::map<StreamKey, Stream> streams;
    std::vector<std::uint16_t> at_start, at_finish;
    std::uint16_t commits = 0;  ///< of an iteration
  };
  struct Meeting {
    std::vector<std::pair<std::size_t, NodeId>> arrived;
    std::size_t expected = 0;
    bool is_complete() const { return arrived.size() == expected; }
  };
  /// A group at one place of the axes that it does not have.
  struct Channel {
    std::vector<std::size_t> members;
    /// By sender and receiver, for collectives none; and then by turn.
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Meeting>> meetings;
  };
  using ChannelKey = std::tuple<std::size_t, AxisSet, std::vector<RankId>>;

  bool full() const { return found_.size() >= limit_; }
  void add(Violation::Kind kind, OpId first, OpId second, std::string text, BufferId buffer = no_buffer) {
    if (!full()) found_.push_back({kind, first, second, buffer, std::move(text)});
  }

  static bool has_group(const StepPlan& plan, const Op& op) {
    return op.group >= 0 && static_cast<std::size_t>(op.group) < plan.groups.size();
  }
  /// Different ranks of one world, and every collective and message in a group.
  bool comparable() {
    std::set<RankId> ranks;
    for (const auto& m : members_) {
      const StepPlan& plan = m->plan;
      const std::string rank = "rank " + std::to_string(plan.topology.rank());
      if (plan.topology.axes != members_.front()->plan.topology.axes || plan.kind != members_.front()->plan.kind)
        add(Violation::Kind::collective_order, no_op, no_op, rank + " has another plan in mind than the others");
      if (!ranks.insert(plan.topology.rank()).second)
        add(Violation::Kind::collective_order, no_op, no_op, rank + " is there twice");
      for (OpId i = 0; i < plan.ops.size(); ++i)
        if (plan.ops[i].collective >= 0 && !has_group(plan, plan.ops[i]))
          add(Violation::Kind::collective_order, i, no_op, describe(plan, i) + " has no group");
    }
    return found_.empty();
  }

  Known start(std::size_t m, NodeId n) { return {&members_[m]->at_start[n * members_.size()], members_.size()}; }
  Known finish(std::size_t m, NodeId n) { return {&members_[m]->at_finish[n * members_.size()], members_.size()}; }
  static void join(Known known, Known other) {
    for (std::size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], other[i]);
  }

  Channel& channel(std::size_t m, std::size_t group) {
    const Topology& own = members_[m]->plan.topology;
    const AxisSet axes = members_[m]->plan.groups[group];
    const auto elsewhere = [axes](const Topology& t) {
      std::vector<RankId> place = t.coordinates;
      for (std::size_t i = 0; i < place.size(); ++i)
        if (axes >> i & 1) place[i] = 0;
      return place;
    };
    const auto [it, fresh] = channels_.try_emplace({group, axes, elsewhere(own)});
    if (fresh)
      for (std::size_t other = 0; other < members_.size(); ++other)
        if (elsewhere(members_[other]->plan.topology) == elsewhere(own)) it->second.members.push_back(other);
    return it->second;
  }
  /// Where the node meets; null for what meets nobody.
  Meeting* meeting(std::size_t m, NodeId n) {
    const Member& self = *members_[m];
    const Op& op = self.plan.ops[self.program.op(n)];
    if (op.collective < 0) return nullptr;
    const auto group = static_cast<std::size_t>(op.group);
    Channel& c = channel(m, group);
    const std::int32_t own = self.plan.topology.position(self.plan.groups[group]);
    std::vector<Meeting>& meetings = c.meetings[op.kind == OpKind::send      ? std::pair(own, op.peer)
                                                : op.kind == OpKind::receive ? std::pair(op.peer, own)
                                                                             : std::pair(-1, -1)];
    const std::uint32_t turn = turn_of(self, n);
    if (meetings.size() <= turn) meetings.resize(turn + 1);
    meetings[turn].expected = is_message(op.kind) ? 2 : c.members.size();
    return &meetings[turn];
  }
  static std::uint32_t turn_of(const Member& m, NodeId n) {
    const Op& op = m.plan.ops[m.program.op(n)];
    return m.program.iteration(n) * m.streams.at(Member::stream_of(op)).numbered +
           static_cast<std::uint32_t>(op.collective);
  }

  bool try_start(std::size_t m, LaneId lane) {
    Member& self = *members_[m];
    LaneState& state = self.lanes[lane];
    if (state.started == self.program.lane_nodes(lane)) return false;
    const bool windowed = self.plan.lanes[lane].windowed;
    if (!windowed && state.started != state.finished) return false;
    const NodeId n = self.program.at(lane, state.started + 1);
    const Op& op = self.plan.ops[self.program.op(n)];
    for (const Wait& w : op.waits) {
      const NodeId target = self.program.target(n, w);
      if (target == no_node || self.lanes[self.program.lane(target)].finished >= self.program.stamp(target)) continue;
      state.blocked_on = target;
      return false;
    }
    state.blocked_on = no_node;
    if (state.started > 0) {
      const NodeId previous = self.program.at(lane, state.started);
      join(start(m, n), windowed ? start(m, previous) : finish(m, previous));
    }
    for (const Wait& w : op.waits)
      if (const NodeId target = self.program.target(n, w); target != no_node) join(start(m, n), finish(m, target));
    ++state.started;
    if (op.collective >= 0) arrive(m, n);
    return true;
  }

  void arrive(std::size_t m, NodeId n) {
    Member& self = *members_[m];
    const OpId id = self.program.op(n);
    const Op& op = self.plan.ops[id];
    Meeting& met = *meeting(m, n);
    const std::uint32_t turn = self.streams.at(Member::stream_of(op)).started++;
    if (turn != turn_of(self, n))
      add(Violation::Kind::collective_order, id, no_op,
          describe(self.plan, id) + " starts in turn " + std::to_string(turn) + " of its group and is numbered " +
              std::to_string(turn_of(self, n)));
    if (!met.arrived.empty()) {
      const auto& [first, node] = met.arrived.front();
      const Member& other = *members_[first];
      const OpId partner = other.program.op(node);
      const Op& theirs = other.plan.ops[partner];
      const bool is_pair =
          is_message(op.kind) ? is_message(theirs.kind) && theirs.kind != op.kind : theirs.kind == op.kind;
      if (!is_pair || theirs.bytes != op.bytes || theirs.pieces != op.pieces || theirs.unit != op.unit ||
          theirs.micro_batch != op.micro_batch)
        add(Violation::Kind::collective_order, partner, id,
            describe(other.plan, partner) + " and " + describe(self.plan, id) +
                " are in the same turn of their group but not the same collective");
    }
    met.arrived.emplace_back(m, n);
    if (met.is_complete())
      for (const auto& [who, node] : met.arrived) ready_.emplace_back(who, members_[who]->program.lane(node));
  }

  bool try_finish(std::size_t m, LaneId lane) {
    Member& self = *members_[m];
    LaneState& state = self.lanes[lane];
    if (state.finished == state.started) return false;
    const NodeId n = self.program.at(lane, state.finished + 1);
    const Op& op = self.plan.ops[self.program.op(n)];
    const Meeting* met = meeting(m, n);
    if (met && !met->is_complete()) return false;
    join(finish(m, n), start(m, n));
    if (state.finished > 0) join(finish(m, n), finish(m, self.program.at(lane, state.finished)));
    // A sender may be done before anyone listens, and has heard nothing.
    if (met && op.kind != OpKind::send)
      for (const auto& [who, node] : met->arrived) join(finish(m, n), start(who, node));
    if (op.kind == OpKind::commit) ++finish(m, n)[m];
    ++state.finished;
    for (LaneId l = 0; l < static_cast<LaneId>(self.lanes.size()); ++l)
      if (self.lanes[l].blocked_on == n) ready_.emplace_back(m, l);
    return true;
  }

  void report_stuck() {
    for (std::size_t m = 0; m < members_.size(); ++m)
      for (LaneId l = 0; l < static_cast<LaneId>(members_[m]->lanes.size()); ++l) {
        const Member& self = *members_[m];
        const LaneState& state = self.lanes[l];
        if (state.finished == self.program.lane_nodes(l)) continue;
        const OpId id = self.program.op(self.program.at(l, state.finished + 1));
        if (state.finished == state.started) {
          if (state.blocked_on == no_node) continue;
          const OpId awaited = self.program.op(state.blocked_on);
          add(Violation::Kind::deadlock, id, awaited,
              describe(self.plan, id) + " never starts: it waits for " + describe(self.plan, awaited));
        } else {
          add(Violation::Kind::deadlock, id, no_op,
              describe(self.plan, id) + " never finishes: " +
                  (is_message(self.plan.ops[id].kind) ? "the other end of its message does not come to it"
                                                      : "other ranks of its collective do not come to it"));
        }
      }
  }

  /// Of the last iteration, as steady as any.
  void check_durable(const Member& self) {
    const auto m = static_cast<std::size_t>(
        std::ranges::find_if(members_, [&](const auto& other) { return other.get() == &self; }) - members_.begin());
    const std::uint32_t last = self.program.iterations() - 1;
    for (OpId i = 0; i < self.plan.ops.size() && !full(); ++i) {
      const Op& op = self.plan.ops[i];
      const auto write =
          std::ranges::find_if(op.accesses, [&](const Access& a) { return is_durable_write(self.plan, a); });
      if (write == op.accesses.end()) continue;
      const Known known = start(m, self.program.node(last, i));
      for (std::size_t other = 0; other < members_.size(); ++other)
        if (known[other] < last * members_[other]->commits)
          return add(Violation::Kind::durable_overwrite, i, no_op,
                     "write of " + self.plan.buffers[write->buffer].name + " by " + describe(self.plan, i) +
                         " is not ordered after the previous iteration's commit of rank " +
                         std::to_string(members_[other]->plan.topology.rank()),
                     write->buffer);
    }
  }

  std::size_t limit_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<ChannelKey, Channel> channels_;
  std::vector<std::pair<std::size_t, LaneId>> ready_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Topology> small_world(const Topology& topology, AxisSet whole) {
  std::vector<Topology> world{topology};
  for (std::size_t axis = 0; axis < topology.axes.size(); ++axis) {
    const RankId size = topology.axes[axis].size;
    const RankId members = whole >> axis & 1 ? size : std::min<RankId>(size, 2);
    std::vector<Topology> wider;
    for (Topology t : world)
      for (RankId c = 0; c < members; ++c) {
        t.coordinates[axis] = c;
        wider.push_back(t);
      }
    world = std::move(wider);
  }
  return world;
}

std::vector<Violation> check_world(std::span<const StepPlan> members, std::size_t limit) {
  return World(members, limit).run();
}

}  // namespace sluice
