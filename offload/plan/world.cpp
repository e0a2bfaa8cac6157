#include "offload/plan/world.h"

#include <algorithm>
#include <array>
#include <bit>
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

/// Along axes of which the members have one place alone, each stands for the others too: its twins. Which of them is
/// meant is a set of these axes, those in which it differs from the member; it runs as the member does.
class Twins {
 public:
  Twins() = default;
  explicit Twins(std::span<const StepPlan* const> members) {
    if (members.empty()) return;
    const Topology& first = members.front()->topology;
    for (std::size_t i = 0; i < first.axes.size(); ++i)
      if (first.axes[i].size > 1 && std::ranges::all_of(members, [&](const StepPlan* m) {
            return m->topology.coordinates[i] == first.coordinates[i];
          }))
        axes_.push_back(i);
  }
  /// Of a member, with itself.
  std::size_t count() const { return std::size_t{1} << axes_.size(); }
  /// Numbers of the axes among those of twins, for those that are in the set.
  std::vector<std::size_t> of(AxisSet set) const {
    std::vector<std::size_t> some;
    for (std::size_t j = 0; j < axes_.size(); ++j)
      if (set >> axes_[j] & 1) some.push_back(j);
    return some;
  }
  RankId rank(const Topology& member, std::size_t twin) const {
    Topology t = member;
    for (std::size_t j = 0; j < axes_.size(); ++j)
      if (twin >> j & 1) t.coordinates[axes_[j]] = t.coordinates[axes_[j]] == 0 ? 1 : 0;
    return t.rank();
  }

 private:
  std::vector<std::size_t> axes_;
};

/// Whose commit of the iteration before the last has certainly finished: a bit for every twin of every member.
using Heard = std::span<std::uint64_t>;
void join(Heard heard, Heard other) {
  for (std::size_t i = 0; i < std::min(heard.size(), other.size()); ++i) heard[i] |= other[i];
}
/// What a member has heard of a twin that differs in other axes too, its twin along axis `j` has heard of that one.
void hear_twins(Heard heard, std::size_t j) {
  constexpr std::array<std::uint64_t, 6> first_of_pairs{0x5555555555555555, 0x3333333333333333, 0x0f0f0f0f0f0f0f0f,
                                                        0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff};
  if (j < first_of_pairs.size()) {
    const std::uint64_t first = first_of_pairs[j];
    const int apart = 1 << j;
    for (std::uint64_t& w : heard) w |= (w & first) << apart | (w >> apart & first);
    return;
  }
  const std::size_t apart = std::size_t{1} << (j - first_of_pairs.size());
  for (std::size_t i = 0; i < heard.size(); ++i)
    if ((i & apart) == 0) heard[i] = heard[i + apart] = heard[i] | heard[i + apart];
}

/// Ranks side by side, executed without time. Of the ops of the last two iterations it is known whose commits have
/// certainly finished when they start, where anything depends on that.
class World {
 public:
  World(std::span<const StepPlan* const> members, std::size_t limit) : limit_(limit), plans_(members) {}

  std::vector<Violation> run() {
    if (!comparable()) return std::move(found_);
    set_up();
    for (std::size_t m = 0; m < members_.size(); ++m)
      for (LaneId l = 0; l < static_cast<LaneId>(members_[m]->lanes.size()); ++l) ready_.emplace_back(m, l);
    while (!ready_.empty() && !full()) {
      const auto [member, lane] = ready_.back();
      ready_.pop_back();
      while (!full() && (try_finish(member, lane) || try_start(member, lane))) {
      }
    }
    if (!full() && found_.empty()) report_stuck();
    if (found_.empty() && words_ > 0)
      for (std::size_t m = 0; m < members_.size(); ++m) check_durable(m);
    return std::move(found_);
  }

 private:
  struct LaneState {
    std::uint32_t started = 0, finished = 0;
    NodeId blocked_on = no_node;
  };
  struct Meeting {
    std::vector<std::pair<std::size_t, NodeId>> arrived;
    std::size_t expected = 0;
    bool is_complete() const { return arrived.size() == expected; }
  };
  /// Collectives of a group, or messages to or from one of its members.
  using StreamKey = std::tuple<std::int32_t, OpKind, std::int32_t>;
  struct Stream {
    std::uint32_t numbered = 0, started = 0;   ///< of an iteration, and in all
    std::vector<Meeting>* meetings = nullptr;  ///< by turn; null where nobody else among the members is met
    std::size_t expected = 0;
    std::vector<std::size_t> twins;  ///< axes along which twins are met
  };
  static constexpr std::uint32_t no_stream = 0xffffffffu;
  struct Member {
    Member(const StepPlan& p, std::uint32_t iterations) : plan(p), program(p, iterations), lanes(p.lanes.size()) {
      std::map<StreamKey, std::uint32_t> known;
      stream_of.assign(p.ops.size(), no_stream);
      for (OpId i = 0; i < p.ops.size(); ++i) {
        const Op& op = p.ops[i];
        if (op.kind == OpKind::commit) last_commit = i;
        if (op.collective < 0) continue;
        const StreamKey key{op.group, is_message(op.kind) ? op.kind : OpKind::all_gather, op.peer};
        stream_of[i] = known.try_emplace(key, static_cast<std::uint32_t>(streams.size())).first->second;
        if (stream_of[i] == streams.size()) streams.emplace_back();
        ++streams[stream_of[i]].numbered;
      }
    }
    const StepPlan& plan;
    Program program;
    std::vector<LaneState> lanes;
    std::vector<Stream> streams;
    std::vector<std::uint32_t> stream_of;
    std::vector<std::uint64_t> at_start, at_finish;  ///< Heard of each op of the last two iterations
    OpId last_commit = no_op;
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
    for (const StepPlan* const p : plans_) {
      const StepPlan& plan = *p;
      const std::string rank = "rank " + std::to_string(plan.topology.rank());
      if (plan.topology.axes != plans_.front()->topology.axes || plan.kind != plans_.front()->kind)
        add(Violation::Kind::collective_order, no_op, no_op, rank + " has another plan in mind than the others");
      if (!ranks.insert(plan.topology.rank()).second)
        add(Violation::Kind::collective_order, no_op, no_op, rank + " is there twice");
      for (OpId i = 0; i < plan.ops.size(); ++i)
        if (plan.ops[i].collective >= 0 && !has_group(plan, plan.ops[i]))
          add(Violation::Kind::collective_order, i, no_op, describe(plan, i) + " has no group");
    }
    return found_.empty();
  }

  void set_up() {
    twins_ = Twins(plans_);
    bool durable = false, commits = false;
    for (const StepPlan* p : plans_) {
      iterations_ = std::max(iterations_, steady_iterations(*p));
      for (const Op& op : p->ops) {
        commits = commits || op.kind == OpKind::commit;
        durable = durable || std::ranges::any_of(op.accesses, [&](const Access& a) { return is_durable_write(*p, a); });
      }
    }
    if (durable && commits && iterations_ > 1) words_ = (plans_.size() * twins_.count() + 63) / 64;
    for (const StepPlan* p : plans_) {
      Member& m = *members_.emplace_back(std::make_unique<Member>(*p, iterations_));
      m.at_start.resize(2 * p->ops.size() * words_);
      m.at_finish.resize(m.at_start.size());
    }
    for (std::size_t m = 0; m < members_.size(); ++m) connect(m);
  }

  void connect(std::size_t m) {
    Member& self = *members_[m];
    for (OpId i = 0; i < self.plan.ops.size(); ++i) {
      if (self.stream_of[i] == no_stream) continue;
      Stream& stream = self.streams[self.stream_of[i]];
      if (stream.expected > 0) continue;
      const Op& op = self.plan.ops[i];
      const auto group = static_cast<std::size_t>(op.group);
      Channel& c = channel(m, group);
      stream.expected = is_message(op.kind) ? 2 : c.members.size();
      if (!is_message(op.kind)) stream.twins = twins_.of(self.plan.groups[group]);
      if (stream.expected == 1) continue;
      const std::int32_t own = self.plan.topology.position(self.plan.groups[group]);
      stream.meetings = &c.meetings[op.kind == OpKind::send      ? std::pair(own, op.peer)
                                    : op.kind == OpKind::receive ? std::pair(op.peer, own)
                                                                 : std::pair(-1, -1)];
    }
  }

  Heard heard(std::vector<std::uint64_t>& all, std::size_t m, NodeId n) {
    const std::uint32_t ops = members_[m]->program.ops(), first = (iterations_ - std::min(iterations_, 2u)) * ops;
    if (n < first || words_ == 0) return {};
    return {&all[(n - first) * words_], words_};
  }
  Heard start(std::size_t m, NodeId n) { return heard(members_[m]->at_start, m, n); }
  Heard finish(std::size_t m, NodeId n) { return heard(members_[m]->at_finish, m, n); }

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
    const std::uint32_t stream = self.stream_of[self.program.op(n)];
    if (stream == no_stream || self.streams[stream].meetings == nullptr) return nullptr;
    std::vector<Meeting>& meetings = *self.streams[stream].meetings;
    const std::uint32_t turn = turn_of(self, n);
    if (meetings.size() <= turn) meetings.resize(turn + 1);
    meetings[turn].expected = self.streams[stream].expected;
    return &meetings[turn];
  }
  static std::uint32_t turn_of(const Member& m, NodeId n) {
    const OpId op = m.program.op(n);
    return m.program.iteration(n) * m.streams[m.stream_of[op]].numbered +
           static_cast<std::uint32_t>(m.plan.ops[op].collective);
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
    const std::uint32_t turn = self.streams[self.stream_of[id]].started++;
    if (turn != turn_of(self, n))
      add(Violation::Kind::collective_order, id, no_op,
          describe(self.plan, id) + " starts in turn " + std::to_string(turn) + " of its group and is numbered " +
              std::to_string(turn_of(self, n)));
    Meeting* const meets = meeting(m, n);
    if (meets == nullptr) return;
    Meeting& met = *meets;
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
    if (const Heard known = finish(m, n); !known.empty()) {
      join(known, start(m, n));
      // A sender may be done before anyone listens, and has heard nothing.
      if (met && op.kind != OpKind::send)
        for (const auto& [who, node] : met->arrived) join(known, start(who, node));
      if (op.collective >= 0)
        for (const std::size_t axis : self.streams[self.stream_of[self.program.op(n)]].twins) hear_twins(known, axis);
      if (state.finished > 0) join(known, finish(m, self.program.at(lane, state.finished)));
      if (self.program.op(n) == self.last_commit && self.program.iteration(n) + 2 == iterations_) set(known, m, 0);
    }
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

  void set(Heard known, std::size_t member, std::size_t twin) {
    const std::size_t bit = member * twins_.count() + twin;
    known[bit / 64] |= std::uint64_t{1} << bit % 64;
  }

  /// Of the last iteration, as steady as any.
  void check_durable(std::size_t m) {
    const Member& self = *members_[m];
    std::vector<std::uint64_t> needed(words_);
    for (std::size_t other = 0; other < members_.size(); ++other)
      for (std::size_t twin = 0; members_[other]->last_commit != no_op && twin < twins_.count(); ++twin)
        set(needed, other, twin);
    const bool has_behind = std::ranges::any_of(self.plan.buffers, &Buffer::behind);
    for (OpId i = 0; i < self.plan.ops.size() && !full(); ++i) {
      const Op& op = self.plan.ops[i];
      const auto write =
          std::ranges::find_if(op.accesses, [&](const Access& a) { return is_durable_write(self.plan, a); });
      if (write == op.accesses.end()) continue;
      // What is written behind an iteration's commit rests on that of the same iteration.
      const bool comes_behind = has_behind && !self.plan.buffers[write->buffer].behind;
      const Heard known = start(m, self.program.node(iterations_ - (comes_behind ? 2 : 1), i));
      for (std::size_t w = 0; w < words_; ++w) {
        const std::uint64_t missing = needed[w] & ~known[w];
        if (missing == 0) continue;
        const std::size_t bit = w * 64 + static_cast<std::size_t>(std::countr_zero(missing));
        const Topology& other = members_[bit / twins_.count()]->plan.topology;
        return add(Violation::Kind::durable_overwrite, i, no_op,
                   "write of " + self.plan.buffers[write->buffer].name + " by " + describe(self.plan, i) +
                       " is not ordered after the " + (comes_behind ? "" : "previous iteration's ") +
                       "commit of rank " + std::to_string(twins_.rank(other, bit % twins_.count())),
                   write->buffer);
      }
    }
  }

  std::size_t limit_;
  std::span<const StepPlan* const> plans_;
  Twins twins_;
  std::uint32_t iterations_ = 1;
  std::size_t words_ = 0;  ///< of Heard; 0 where nothing depends on it
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

std::vector<Violation> check_world(std::span<const StepPlan* const> members, std::size_t limit) {
  return World(members, limit).run();
}

std::vector<Violation> check_world(std::span<const StepPlan> members, std::size_t limit) {
  std::vector<const StepPlan*> pointers;
  for (const StepPlan& plan : members) pointers.push_back(&plan);
  return check_world(pointers, limit);
}

}  // namespace sluice
