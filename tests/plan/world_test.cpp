// Ranks side by side: check_world() against a graph of all starts and ends, and the small world against the full one.
#include "offload/plan/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offload/plan/program.h"
#include "sluice/random.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/toy_pipeline.h"

namespace sluice {
namespace {

using Kind = Violation::Kind;
using World = std::vector<StepPlan>;

std::vector<Topology> all_ranks(const Topology& topology) {
  std::vector<Topology> ranks;
  for (RankId r = 0; r < topology.ranks(); ++r) ranks.push_back(topology.at(r));
  return ranks;
}

World random_world(std::uint64_t seed, RandomPlanOptions options, const std::vector<Topology>& ranks) {
  World world;
  for (const Topology& rank : ranks) {
    options.topology = rank;
    finish(world.emplace_back(random_plan(seed, options)), PackEffort::quick);
  }
  return world;
}

std::string text(const std::vector<Violation>& violations) {
  std::string all;
  for (const Violation& v : violations) all += v.message + "\n";
  return all;
}

std::set<Kind> kinds(const std::vector<Violation>& violations) {
  std::set<Kind> all;
  for (const Violation& v : violations) all.insert(v.kind);
  return all;
}

std::vector<std::vector<RankId>> shapes() {
  return {{1}, {2}, {3}, {4}, {8}, {1, 3}, {2, 2}, {2, 4}, {4, 2}, {3, 3}, {2, 2, 2}};
}

/// What follows from one start or end, as edges of a graph. Plans have to be of full worlds.
class WorldReachability {
 public:
  explicit WorldReachability(const World& world) : world_(world) {
    for (const StepPlan& plan : world) {
      programs_.emplace_back(plan, planning::steady_iterations(plan));
      first_.push_back(events_);
      events_ += 2 * programs_.back().nodes();
    }
    next_.resize(events_);
    before_.resize(events_);
    for (std::size_t m = 0; m < world.size(); ++m) add(m);
    for (const auto& [key, meeting] : meetings_) meet(key.axes, meeting);
  }

  bool sound() const { return in_turn_ && all_happen() && durable(); }

 private:
  using NodeId = planning::NodeId;
  struct Key {
    RankId first;  ///< of the group's ranks
    AxisSet axes;
    std::size_t group;
    std::uint32_t iteration;
    std::int32_t number;
    auto operator<=>(const Key&) const = default;
  };
  struct At {
    std::size_t rank;
    NodeId node;
  };

  std::size_t start(std::size_t m, NodeId n) const { return first_[m] + std::size_t{2} * n; }
  std::size_t end(std::size_t m, NodeId n) const { return start(m, n) + 1; }
  void edge(std::size_t a, std::size_t b) {
    next_[a].push_back(b);
    ++before_[b];
  }

  void add(std::size_t m) {
    const StepPlan& plan = world_[m];
    const planning::Program& p = programs_[m];
    std::vector<std::int32_t> met(plan.groups.size());
    for (NodeId n = 0; n < p.nodes(); ++n) {
      const Op& op = plan.ops[p.op(n)];
      if (p.op(n) == 0) std::ranges::fill(met, 0);
      edge(start(m, n), end(m, n));
      if (const std::uint32_t stamp = p.stamp(n); stamp > 1) {
        const NodeId last = p.at(op.lane, stamp - 1);
        edge(plan.lanes[op.lane].windowed ? start(m, last) : end(m, last), start(m, n));
        edge(end(m, last), end(m, n));
      }
      for (const Wait& w : op.waits)
        if (const NodeId t = p.target(n, w); t != planning::no_node) edge(end(m, t), start(m, n));
      if (op.collective < 0) continue;
      const auto group = static_cast<std::size_t>(op.group);
      in_turn_ = in_turn_ && op.collective == met[group]++;
      const AxisSet axes = plan.groups[group];
      meetings_[{plan.topology.members(axes).front(), axes, group, p.iteration(n), op.collective}].push_back({m, n});
    }
  }

  void meet(AxisSet axes, const std::vector<At>& meeting) {
    const At& first = meeting.front();
    const Op& op = op_at(first);
    in_turn_ = in_turn_ && meeting.size() == world_[first.rank].topology.size(axes);
    for (const At& a : meeting) {
      in_turn_ = in_turn_ && op_at(a).kind == op.kind && op_at(a).unit == op.unit && op_at(a).bytes == op.bytes;
      for (const At& b : meeting) edge(start(a.rank, a.node), end(b.rank, b.node));
    }
  }
  const Op& op_at(const At& at) const { return world_[at.rank].ops[programs_[at.rank].op(at.node)]; }

  bool all_happen() const {
    std::vector<std::size_t> left = before_, ready;
    for (std::size_t e = 0; e < events_; ++e)
      if (left[e] == 0) ready.push_back(e);
    std::size_t happened = 0;
    for (; !ready.empty(); ++happened) {
      const std::size_t e = ready.back();
      ready.pop_back();
      for (const std::size_t n : next_[e])
        if (--left[n] == 0) ready.push_back(n);
    }
    return happened == events_;
  }

  std::vector<bool> after(std::size_t event) const {
    std::vector<bool> seen(events_);
    std::vector<std::size_t> open{event};
    while (!open.empty()) {
      const std::size_t e = open.back();
      open.pop_back();
      for (const std::size_t n : next_[e])
        if (!seen[n]) {
          seen[n] = true;
          open.push_back(n);
        }
    }
    return seen;
  }

  bool durable() const {
    std::vector<std::size_t> writes;
    for (std::size_t m = 0; m < world_.size(); ++m)
      for (OpId i = 0; i < world_[m].ops.size(); ++i)
        if (std::ranges::any_of(world_[m].ops[i].accesses,
                                [&](const Access& a) { return planning::is_durable_write(world_[m], a); }))
          writes.push_back(start(m, programs_[m].node(programs_[m].iterations() - 1, i)));
    for (std::size_t m = 0; m < world_.size(); ++m)
      for (OpId i = 0; i < world_[m].ops.size(); ++i) {
        if (world_[m].ops[i].kind != OpKind::commit || programs_[m].iterations() == 1) continue;
        const std::vector<bool> later = after(end(m, programs_[m].node(programs_[m].iterations() - 2, i)));
        if (!std::ranges::all_of(writes, [&](std::size_t w) { return later[w]; })) return false;
      }
    return true;
  }

  const World& world_;
  std::vector<planning::Program> programs_;
  std::vector<std::size_t> first_;  ///< event of each rank
  std::size_t events_ = 0;
  std::vector<std::vector<std::size_t>> next_;
  std::vector<std::size_t> before_;
  std::map<Key, std::vector<At>> meetings_;
  bool in_turn_ = true;
};

// ---- ways to break a plan, the same in every rank

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t below(std::size_t n) { return philox(seed_, draw_++, 11)[0] % static_cast<std::uint32_t>(n); }
  /// Of the ops that have the property; no_op where none has.
  template <class Has>
  OpId op(const StepPlan& plan, Has has) {
    std::vector<OpId> some;
    for (OpId i = 0; i < plan.ops.size(); ++i)
      if (has(plan.ops[i])) some.push_back(i);
    return some.empty() ? no_op : some[below(some.size())];
  }

 private:
  std::uint64_t seed_, draw_ = 0;
};

bool writes_durably(const StepPlan& plan, const Op& op) {
  return std::ranges::any_of(op.accesses, [&](const Access& a) { return planning::is_durable_write(plan, a); });
}

/// Two collectives of one group, no_op where none has two.
std::pair<OpId, OpId> two_of_a_group(const StepPlan& plan, Chance& chance) {
  const OpId second = chance.op(plan, [](const Op& op) { return op.collective > 0; });
  if (second == no_op) return {no_op, no_op};
  const OpId first = chance.op(plan, [&](const Op& op) {
    return op.group == plan.ops[second].group && op.collective >= 0 && op.collective < plan.ops[second].collective;
  });
  return {first, second};
}

/// Each says whether it found something to break. Here of a lane that the durable rule rests on.
bool lose_a_lanes_waits(StepPlan& plan, Chance& chance) {
  const OpId one = chance.op(plan, [&](const Op& op) {
    return op.kind == OpKind::write || op.kind == OpKind::control || op.kind == OpKind::sync;
  });
  if (one == no_op) return false;
  bool lost = false;
  for (Op& op : plan.ops)
    if (op.lane == plan.ops[one].lane) {
      lost = lost || !op.waits.empty();
      op.waits.clear();
    }
  return lost;
}

bool lose_the_waits_of_a_durable_write(StepPlan& plan, Chance& chance) {
  const OpId one = chance.op(plan, [&](const Op& op) { return writes_durably(plan, op) && !op.waits.empty(); });
  if (one != no_op) plan.ops[one].waits.clear();
  return one != no_op;
}

bool wait_for_a_later_op(StepPlan& plan, Chance& chance) {
  const std::uint32_t first = chance.below(plan.ops.size() - 1);
  const std::uint32_t later = first + 1 + chance.below(plan.ops.size() - 1 - first);
  plan.ops[first].waits.push_back({later, false});
  return true;
}

bool exchange_collectives(StepPlan& plan, Chance& chance) {
  const auto [a, b] = two_of_a_group(plan, chance);
  if (a == no_op) return false;
  std::swap(plan.ops[a], plan.ops[b]);
  std::swap(plan.ops[a].collective, plan.ops[b].collective);
  return true;
}

bool exchange_collectives_and_waits(StepPlan& plan, Chance& chance) {
  if (!exchange_collectives(plan, chance)) return false;
  derive_waits(plan);
  return true;
}

bool exchange_numbers(StepPlan& plan, Chance& chance) {
  const auto [a, b] = two_of_a_group(plan, chance);
  if (a != no_op) std::swap(plan.ops[a].collective, plan.ops[b].collective);
  return a != no_op;
}

bool commit_behind_the_meeting(StepPlan& plan, Chance&) {
  const auto commits = [](const Op& op) { return op.kind == OpKind::sync || op.kind == OpKind::commit; };
  if (std::ranges::none_of(plan.ops, commits)) return false;
  std::ranges::stable_partition(plan.ops, std::not_fn(commits));
  derive_waits(plan);
  return true;
}

/// It then stands for what was written in the iteration before.
bool commit_ahead_of_the_writes(StepPlan& plan, Chance&) {
  const auto commits = [](const Op& op) { return op.kind == OpKind::sync || op.kind == OpKind::commit; };
  if (std::ranges::none_of(plan.ops, commits)) return false;
  std::ranges::stable_partition(plan.ops, commits);
  derive_waits(plan);
  return true;
}

bool no_meeting(StepPlan& plan, Chance&) {
  for (Op& op : plan.ops)
    if (op.kind == OpKind::control) op.group = op.collective = -1;
  derive_waits(plan);
  return true;
}

/// Of the meetings for the vote, each loses an axis.
bool smaller_meeting(StepPlan& plan, Chance& chance) {
  for (const Op& op : plan.ops)
    if (op.kind == OpKind::control) {
      AxisSet& axes = plan.groups[static_cast<std::size_t>(op.group)];
      if (const AxisSet lost = AxisSet{1} << chance.below(plan.topology.axes.size()); (axes & lost) != 0) axes &= ~lost;
    }
  return true;
}

bool write_without_the_vote(StepPlan& plan, Chance& chance) {
  const OpId one = chance.op(plan, [&](const Op& op) { return writes_durably(plan, op); });
  if (one == no_op) return false;
  std::erase_if(plan.ops[one].accesses, [&](const Access& a) { return plan.buffers[a.buffer].name == "control2"; });
  derive_waits(plan);
  return true;
}

bool lose_a_collective(StepPlan& plan, Chance& chance) {
  const OpId one = chance.op(plan, [&](const Op& op) {
    return op.collective >= 0 && plan.topology.size(plan.groups[static_cast<std::size_t>(op.group)]) > 1;
  });
  if (one == no_op) return false;
  for (Op& op : plan.ops)
    if (op.group == plan.ops[one].group && op.collective > plan.ops[one].collective) --op.collective;
  plan.ops[one].group = plan.ops[one].collective = -1;
  return true;
}

struct Breakage {
  const char* name;
  bool (*apply)(StepPlan&, Chance&);
  int least, most;  ///< percent of worlds that are refused where all ranks do it
};
constexpr Breakage breakages[] = {{"lose a lane's waits", lose_a_lanes_waits, 20, 80},
                                  {"lose the waits of a durable write", lose_the_waits_of_a_durable_write, 40, 90},
                                  {"wait for a later op", wait_for_a_later_op, 40, 90},
                                  {"exchange collectives", exchange_collectives, 20, 80},
                                  {"exchange collectives and waits", exchange_collectives_and_waits, 0, 10},
                                  {"exchange numbers", exchange_numbers, 100, 100},
                                  {"commit behind the meeting", commit_behind_the_meeting, 40, 80},
                                  {"commit ahead of the writes", commit_ahead_of_the_writes, 0, 10},
                                  {"no meeting", no_meeting, 40, 80},
                                  {"smaller meeting", smaller_meeting, 40, 80},
                                  {"write without the vote", write_without_the_vote, 20, 80},
                                  {"lose a collective", lose_a_collective, 0, 40}};

/// How often something was tried, and how often a proof said no.
struct Tally {
  int tried = 0, rejected = 0;
};

// ---- small worlds

TEST(World, TheSmallWorldHasTwoRanksAlongEachAxis) {
  const Topology topology = grid({4, 1, 3}).at(7);
  const std::vector<Topology> small = small_world(topology);
  std::set<RankId> ranks;
  for (const Topology& t : small) {
    EXPECT_EQ(t.axes, topology.axes) << "sizes are the real ones";
    ranks.insert(t.rank());
  }
  EXPECT_EQ(ranks, (std::set<RankId>{0, 1, 3, 4}));
  EXPECT_EQ(small.size(), 4u);
  EXPECT_EQ(small_world(topology, 4).size(), 2u * 3);
  EXPECT_EQ(small_world(topology, 1).size(), 4u * 2);
  EXPECT_EQ(small_world(topology, 7).size(), topology.ranks());
  EXPECT_EQ(small_world({}).size(), 1u);
}

TEST(World, LegalPlansOfEveryShapePass) {
  int durable_writes = 0, collectives = 0;
  for (const std::vector<RankId>& sizes : shapes())
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      const Topology topology = grid(sizes);
      SCOPED_TRACE(std::to_string(topology.ranks()) + " ranks, seed " + std::to_string(seed));
      const RandomPlanOptions options{12, {}, seed % 4 != 0, seed % 4 != 1};
      const World world = random_world(seed, options, all_ranks(topology));
      for (const StepPlan& plan : world) ASSERT_TRUE(check(plan).empty()) << text(check(plan));
      const auto violations = check_world(world);
      ASSERT_TRUE(violations.empty()) << text(violations);
      ASSERT_TRUE(check_world(random_world(seed, options, small_world(topology))).empty());
      ASSERT_TRUE(check_world({&world.back(), 1}).empty());
      for (const Op& op : world[0].ops) {
        durable_writes += options.cyclic && writes_durably(world[0], op);
        collectives += op.collective >= 0;
      }
    }
  EXPECT_GT(durable_writes, 50);
  EXPECT_GT(collectives, 500);
}

TEST(World, SoundRanksHaveOneSignature) {
  std::set<std::uint64_t> of_worlds;
  int worlds = 0;
  for (const std::vector<RankId>& sizes : shapes())
    for (std::uint64_t seed = 0; seed < 8; ++seed, ++worlds) {
      const World world = random_world(seed, {12}, all_ranks(grid(sizes)));
      std::set<std::uint64_t> hashes;
      for (const StepPlan& plan : world) {
        EXPECT_EQ(plan_signature(plan), plan_signature(world[0])) << plan.topology.rank() << ", seed " << seed;
        hashes.insert(plan_hash(plan));
      }
      EXPECT_EQ(hashes.size(), world.size()) << "whose program it is, the hash does see";
      of_worlds.insert(plan_signature(world[0]));
    }
  EXPECT_EQ(of_worlds.size(), static_cast<std::size_t>(worlds));
}

TEST(World, ASignatureSeesWhatRanksHaveInCommon) {
  const StepPlan plan = random_world(3, {20}, {grid({2})})[0];
  const auto differs = [&](auto change) {
    StepPlan other = plan;
    change(other);
    return plan_signature(other) != plan_signature(plan);
  };
  EXPECT_TRUE(differs([](StepPlan& p) { p.kind = PlanKind::flush; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.cyclic = false; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.topology.axes[0].size = 3; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.groups.back() = 0; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.lanes[2].windowed = false; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[4].lane = 5; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[4].bytes += 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[4].pieces += 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops[4].waits.push_back({0, true}); }));
  const auto first_wait = [](StepPlan& p) -> Wait& {
    return std::ranges::find_if(p.ops, [](const Op& op) { return !op.waits.empty(); })->waits[0];
  };
  EXPECT_TRUE(differs([&](StepPlan& p) { first_wait(p).op += 1; }));
  EXPECT_TRUE(differs([&](StepPlan& p) { first_wait(p).previous_iteration ^= true; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops.pop_back(); }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.ops.back().collective += 1; }));
  EXPECT_TRUE(differs([](StepPlan& p) { p.buffers[0].bytes += 1; }));
  EXPECT_FALSE(differs([](StepPlan& p) { p.topology.coordinates[0] = 1; }));
  EXPECT_FALSE(differs([](StepPlan& p) { p.ops[4].accesses.push_back({0, 0, 1}); }));
}

TEST(World, SmallProofsAgreeWithTheFullOne) {
  std::map<std::string, Tally> tallies;
  Tally all;
  for (const Breakage& breakage : breakages)
    for (const std::vector<RankId>& sizes : shapes())
      for (std::uint64_t seed = 100; seed < 108; ++seed) {
        const Topology topology = grid(sizes);
        SCOPED_TRACE(std::string(breakage.name) + ", " + std::to_string(topology.axes.size()) + " axes, " +
                     std::to_string(topology.ranks()) + " ranks, seed " + std::to_string(seed));
        World full = random_world(seed, {12}, all_ranks(topology));
        World small = random_world(seed, {12}, small_world(topology));
        bool broken = true;
        for (World* world : {&full, &small})
          for (StepPlan& plan : *world) {
            Chance chance(seed);
            broken = breakage.apply(plan, chance) && broken;
          }
        if (!broken) continue;
        const auto alike = [&](const StepPlan& plan) { return plan_signature(plan) == plan_signature(small[0]); };
        if (!std::ranges::all_of(full, alike)) continue;  // own parts that others wait for
        const auto in_full = check_world(full, 1000), in_small = check_world(small, 1000);
        ASSERT_EQ(kinds(in_full), kinds(in_small)) << text(in_full) << "and\n" << text(in_small);
        const auto by_one = check_world({&small[0], 1}, 1000);
        ASSERT_EQ(kinds(in_full), kinds(by_one)) << text(in_full) << "and\n" << text(by_one);
        ASSERT_EQ(in_full.empty(), WorldReachability(full).sound()) << text(in_full);
        ++tallies[breakage.name].tried;
        ++all.tried;
        tallies[breakage.name].rejected += !in_full.empty();
        all.rejected += !in_full.empty();
      }
  for (const Breakage& breakage : breakages) {
    const Tally tally = tallies[breakage.name];
    RecordProperty(breakage.name, std::to_string(tally.rejected) + " of " + std::to_string(tally.tried));
    EXPECT_GE(tally.tried, 30) << breakage.name;
    EXPECT_GE(100 * tally.rejected, breakage.least * tally.tried) << breakage.name;
    EXPECT_LE(100 * tally.rejected, breakage.most * tally.tried) << breakage.name;
  }
  EXPECT_GT(all.tried, 600);
  EXPECT_GT(all.rejected, all.tried / 3);
  EXPECT_LT(all.rejected, all.tried * 9 / 10);
}

TEST(World, AMemberThatIsBrokenAloneIsFound) {
  std::map<std::string, Tally> tallies;
  for (const Breakage& breakage : breakages)
    for (const std::vector<RankId>& sizes : shapes())
      for (std::uint64_t seed = 200; seed < 206; ++seed) {
        const Topology topology = grid(sizes);
        if (topology.ranks() == 1) continue;
        World world = random_world(seed, {12}, all_ranks(topology));
        Chance chance(seed);
        const std::size_t member = chance.below(world.size()), other = member == 0 ? 1 : 0;
        SCOPED_TRACE(std::string(breakage.name) + " in rank " + std::to_string(member) + " of " +
                     std::to_string(world.size()) + ", seed " + std::to_string(seed));
        if (!breakage.apply(world[member], chance)) continue;
        const auto violations = check_world(world);
        ASSERT_EQ(violations.empty(), WorldReachability(world).sound()) << text(violations);
        ++tallies[breakage.name].tried;
        tallies[breakage.name].rejected += !violations.empty();
        if (!violations.empty()) {
          EXPECT_NE(plan_signature(world[member]), plan_signature(world[other])) << text(violations);
        }
      }
  for (const Breakage& breakage : breakages) {
    const Tally tally = tallies[breakage.name];
    RecordProperty(breakage.name, std::to_string(tally.rejected) + " of " + std::to_string(tally.tried));
    EXPECT_GE(tally.tried, 20) << breakage.name;
    if (breakage.apply != commit_ahead_of_the_writes) {
      EXPECT_GE(tally.rejected, 5) << breakage.name;
    }
  }
  for (const char* name : {"exchange numbers", "lose a collective", "no meeting"})
    EXPECT_EQ(tallies[name].rejected, tallies[name].tried) << name;
}

// ---- by hand

Op op_on(OpKind kind, LaneId lane, std::vector<Wait> waits = {}) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.unit = 0;
  op.waits = std::move(waits);
  return op;
}
Op meeting(OpKind kind, LaneId lane, std::int32_t group, std::int32_t turn, std::uint64_t bytes = 100,
           std::vector<Wait> waits = {}) {
  Op op = op_on(kind, lane, std::move(waits));
  op.group = group;
  op.collective = turn;
  op.bytes = bytes;
  return op;
}

/// Two ranks that gather, and reduce what another lane has made; both in the group of lane 1, of which there is a
/// second on lane 2.
World two_ranks() {
  World world;
  for (const Topology& rank : all_ranks(grid({2}))) {
    StepPlan& plan = world.emplace_back();
    plan.topology = rank;
    plan.units = {"L0.mlp"};
    plan.groups = {1, 1};
    plan.lanes = {{LaneKind::compute}, {LaneKind::comm, false, 0}, {LaneKind::comm, false, 1}};
    plan.ops = {meeting(OpKind::all_gather, 1, 0, 0), op_on(OpKind::backward, 0, {{0, false}}),
                meeting(OpKind::reduce_scatter, 1, 0, 1, 100, {{1, false}})};
  }
  return world;
}

TEST(World, TwoRanksMeet) {
  EXPECT_TRUE(check_world(two_ranks()).empty()) << text(check_world(two_ranks()));
  EXPECT_TRUE(check_world(World{}).empty());
}

TEST(World, AnotherOrderOfCollectivesNamesBothOps) {
  World world = two_ranks();
  std::swap(world[1].ops[0].kind, world[1].ops[2].kind);
  EXPECT_TRUE(check(world[1]).empty()) << "each rank by itself is right";
  const auto violations = check_world(world);
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(kinds(violations), (std::set<Kind>{Kind::collective_order}));
  const std::string gather = "#0 rank 0 comm all_gather L0.mlp", scatter = "#0 rank 1 comm reduce_scatter L0.mlp";
  EXPECT_TRUE(violations[0].message ==
                  gather + " and " + scatter + " are in the same turn of their group but not the same collective" ||
              violations[0].message ==
                  scatter + " and " + gather + " are in the same turn of their group but not the same collective")
      << text(violations);
  EXPECT_EQ(violations[0].first, 0u);
  EXPECT_EQ(violations[0].second, 0u);
  for (const auto& change : std::vector<void (*)(Op&)>{[](Op& op) { op.bytes = 99; }, [](Op& op) { op.unit = -1; }}) {
    world = two_ranks();
    change(world[0].ops[2]);
    EXPECT_TRUE(kinds(check_world(world)).contains(Kind::collective_order));
  }
}

/// Two groups of the same ranks: on lanes of their own they meet in any order, on a device's lane in one.
TEST(World, ADevicesCollectivesAreOneQueue) {
  const auto world_of = [](bool on_device, bool turned) {
    World world;
    for (const Topology& rank : all_ranks(grid({2}))) {
      StepPlan& plan = world.emplace_back();
      plan.topology = rank;
      plan.units = {"L0.mlp"};
      plan.groups = {1, 1};
      if (on_device)
        plan.lanes = {{LaneKind::comm, false, -1}};
      else
        plan.lanes = {{LaneKind::comm, false, 0}, {LaneKind::comm, false, 1}};
      plan.ops = {meeting(OpKind::all_gather, 0, 0, 0), meeting(OpKind::all_gather, on_device ? 0 : 1, 1, 0)};
      if (turned && rank.rank() == 1) std::swap(plan.ops[0], plan.ops[1]);
    }
    return world;
  };
  EXPECT_TRUE(check_world(world_of(false, true)).empty()) << text(check_world(world_of(false, true)));
  EXPECT_TRUE(check_world(world_of(true, false)).empty()) << text(check_world(world_of(true, false)));
  const auto violations = check_world(world_of(true, true));
  EXPECT_EQ(kinds(violations), (std::set<Kind>{Kind::deadlock})) << text(violations);
}

TEST(World, ACollectiveOutOfTurnNamesItself) {
  World world = two_ranks();
  for (StepPlan& plan : world) std::swap(plan.ops[0].collective, plan.ops[2].collective);
  const auto violations = check_world(world, 100);
  EXPECT_TRUE(kinds(violations).contains(Kind::collective_order));
  EXPECT_NE(text(violations).find("#0 rank 0 comm all_gather L0.mlp starts in turn 0 of its group and is numbered 1"),
            std::string::npos)
      << text(violations);
}

TEST(World, AMissingCollectiveIsADeadlock) {
  World world = two_ranks();
  world[0].ops.pop_back();
  const auto violations = check_world(world);
  ASSERT_EQ(violations.size(), 1u) << text(violations);
  EXPECT_EQ(violations[0].kind, Kind::deadlock);
  EXPECT_EQ(violations[0].first, 2u);
  EXPECT_EQ(violations[0].message,
            "#2 rank 1 comm reduce_scatter L0.mlp never finishes: other ranks of its collective do not come to it");
}

TEST(World, AMissingCollectiveStopsWhatWaitsForIt) {
  World world = two_ranks();
  world[1].ops.resize(2);
  world[1].ops[1].waits.clear();
  world[1].ops[0] = op_on(OpKind::forward, 0);
  const auto violations = check_world(world);
  ASSERT_EQ(violations.size(), 2u) << text(violations);
  EXPECT_EQ(violations[0].message,
            "#1 rank 0 compute backward L0.mlp never starts: it waits for #0 rank 0 comm all_gather L0.mlp");
  EXPECT_EQ(violations[0].second, 0u);
  EXPECT_EQ(violations[1].message,
            "#0 rank 0 comm all_gather L0.mlp never finishes: other ranks of its collective do not come to it");
}

/// Each rank alone gets through, and every group is numbered in turn.
TEST(World, TwoGroupsInCrossedOrderAreADeadlock) {
  World world = two_ranks();
  for (StepPlan& plan : world) plan.ops = {meeting(OpKind::all_gather, 1, 0, 0), meeting(OpKind::all_gather, 2, 1, 0)};
  EXPECT_TRUE(check_world(world).empty()) << "on lanes of their own they come in any order";
  world[0].ops[1].waits = {{0, false}};
  EXPECT_TRUE(check_world(world).empty());
  world[1].ops[0].waits = {{1, false}};
  for (const StepPlan& plan : world) {
    const auto local = check(plan);
    EXPECT_FALSE(kinds(local).contains(Kind::deadlock)) << text(local);
  }
  const auto violations = check_world(world);
  EXPECT_EQ(kinds(violations), (std::set<Kind>{Kind::deadlock}));
  for (const char* rank : {"rank 0", "rank 1"})
    EXPECT_NE(text(violations).find(rank), std::string::npos) << text(violations);
}

TEST(World, GroupsAlongAnAxisMeetApart) {
  // Four ranks; along the second axis rank 0 meets 1, and 2 meets 3. Only the first two come.
  World world;
  for (const Topology& rank : all_ranks(grid({2, 2}))) {
    StepPlan& plan = world.emplace_back(two_ranks()[0]);
    plan.topology = rank;
    plan.groups = {2, 2};
    if (rank.coordinates[0] == 1) plan.ops = {op_on(OpKind::backward, 0)};
  }
  EXPECT_TRUE(check_world(world).empty()) << text(check_world(world));
  for (StepPlan& plan : world) plan.groups = {1, 1};
  EXPECT_EQ(kinds(check_world(world)), (std::set<Kind>{Kind::deadlock})) << "along the first, 0 meets 2 and 1 meets 3";
}

/// Reads control, writes the next slot; then sync, commit and the vote.
World durable_world(const Topology& topology, const std::vector<AxisSet>& votes) {
  World world;
  for (const Topology& rank : all_ranks(topology)) {
    StepPlan& plan = world.emplace_back();
    plan.cyclic = true;
    plan.topology = rank;
    plan.units = {"L0.mlp"};
    plan.lanes = {{LaneKind::nvme_write, true}, {LaneKind::commit}, {LaneKind::optimizer}};
    plan.buffers = {{"control", Tier::host, 512, Life::persistent}, {"state", Tier::nvme, 8192, Life::persistent, 2}};
    Op write = op_on(OpKind::write, 0);
    write.accesses = {{0, 0, 64}, {1, 0, 8192, Role::dst, Mode::write, Slot::next}};
    plan.ops = {write, op_on(OpKind::sync, 1), op_on(OpKind::commit, 1)};
    for (const AxisSet axes : votes) {
      plan.ops.push_back(meeting(OpKind::control, 2, static_cast<std::int32_t>(plan.groups.size()), 0));
      plan.ops.back().accesses = {{0, 0, 64, Role::dst, Mode::read_write}};
      plan.groups.push_back(axes);
    }
    finish(plan);
  }
  return world;
}

TEST(World, ADurableWriteWaitsForEveryRanksCommit) {
  World world = durable_world(grid({3}), {1});
  EXPECT_TRUE(check_world(world).empty()) << text(check_world(world));
  // Without the meeting of the ranks, each goes on alone.
  for (StepPlan& plan : world) {
    plan.ops[3].collective = plan.ops[3].group = -1;
    derive_waits(plan);
    EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  }
  const auto violations = check_world(world);
  ASSERT_EQ(violations.size(), 3u) << text(violations);
  EXPECT_EQ(violations[0].kind, Kind::durable_overwrite);
  EXPECT_EQ(violations[0].first, 0u);
  EXPECT_EQ(violations[0].buffer, 1u);
  EXPECT_EQ(
      violations[0].message,
      "write of state by #0 rank 0 nvme_write write L0.mlp is not ordered after the previous iteration's commit of "
      "rank 1");
  EXPECT_NE(violations[2].message.find("rank 2 nvme_write"), std::string::npos);
  EXPECT_NE(violations[2].message.find("commit of rank 0"), std::string::npos);
  EXPECT_EQ(check_world(world, 2).size(), 2u);
  // One iteration alone has none before it.
  for (StepPlan& plan : world) {
    plan.cyclic = false;
    derive_waits(plan);
  }
  EXPECT_TRUE(check_world(world).empty());
}

/// With updates in both passes a step's commit comes in its middle, and what is written behind it rests on it.
TEST(World, AWriteBehindACommitWaitsForThatOfEveryRank) {
  World world = durable_world(grid({2}), {1});
  for (StepPlan& plan : world) {
    plan.buffers[1].behind = true;
    plan.buffers.push_back({"early", Tier::nvme, 8192, Life::persistent, 2});
    plan.buffers.push_back({"sum", Tier::host, 64});
    plan.lanes.push_back({LaneKind::comm, false, 1});
    plan.groups.push_back(1);
    Op sum = meeting(OpKind::reduce_scatter, 3, 1, 0);
    sum.accesses = {{3, 0, 64, Role::dst, Mode::write}};
    Op write = op_on(OpKind::write, 0);
    write.accesses = {{3, 0, 64}, {2, 0, 8192, Role::dst, Mode::write, Slot::next}};
    plan.ops.insert(plan.ops.end() - 1, {sum, write});
    finish(plan);
    EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  }
  EXPECT_TRUE(check_world(world).empty()) << text(check_world(world));
  for (StepPlan& plan : world) {
    std::swap(plan.ops[1], plan.ops[3]);  // they meet ahead of the commit
    std::swap(plan.ops[2], plan.ops[3]);
    derive_waits(plan);
    EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  }
  const auto violations = check_world(world);
  ASSERT_EQ(violations.size(), 2u) << text(violations);
  EXPECT_EQ(violations[0].message,
            "write of early by #4 rank 0 nvme_write write L0.mlp is not ordered after the commit of rank 1");
}

TEST(World, MeetingsAlongAllAxesTogetherKnowEveryCommit) {
  for (const std::vector<RankId>& sizes : std::vector<std::vector<RankId>>{{2, 2}, {2, 4}, {3, 3}}) {
    const auto holds = [&](const std::vector<AxisSet>& votes) {
      const World world = durable_world(grid(sizes), votes);
      const bool by_all = check_world(world).empty();
      for (const StepPlan& one : world) EXPECT_EQ(check_world({&one, 1}).empty(), by_all);
      return by_all;
    };
    EXPECT_TRUE(holds({3}));
    EXPECT_TRUE(holds({1, 2}));
    EXPECT_TRUE(holds({2, 1}));
    EXPECT_FALSE(holds({1}));
    EXPECT_FALSE(holds({2, 2}));
    EXPECT_FALSE(holds({}));
  }
}

TEST(World, AWindowedLaneGivesTheOrderOfStartsAndOfEnds) {
  World world = durable_world(grid({2}), {1});
  for (StepPlan& plan : world) {
    plan.ops[3].lane = 0;
    plan.ops.push_back(op_on(OpKind::write, 0));
    plan.ops[0].waits = {{2, true}};
  }
  const auto violations = check_world(world);
  EXPECT_EQ(kinds(violations), (std::set<Kind>{Kind::durable_overwrite}));
  EXPECT_EQ(violations.size(), 2u) << "in no rank has more than the vote's start come before: " << text(violations);
  for (StepPlan& plan : world) plan.ops[0].waits = {{2, true}, {4, true}};
  EXPECT_TRUE(check_world(world).empty()) << "what ends after the vote is seen to end after it";
  for (StepPlan& plan : world) {
    plan.ops[0].waits = {{2, true}};
    plan.lanes[0].windowed = false;
  }
  EXPECT_TRUE(check_world(world).empty());
}

TEST(World, OneRankNamesTheOtherThatItHasNotHeardOf) {
  const World world = durable_world(grid({3, 2}), {1});
  const auto violations = check_world({&world[3], 1});
  ASSERT_EQ(violations.size(), 1u) << text(violations);
  EXPECT_NE(violations[0].message.find("rank 3 nvme_write"), std::string::npos) << text(violations);
  EXPECT_NE(violations[0].message.find("commit of rank 2"), std::string::npos) << "the other one along the second axis";
}

/// More twins than the bits of a word.
TEST(World, ManyAxesAreProvenByOneRank) {
  const Topology topology = grid({2, 2, 2, 2, 2, 2, 2, 2});
  World one = durable_world(topology.at(0), {0xff});
  EXPECT_TRUE(check_world({&one[0], 1}).empty());
  for (int axis = 0; axis < 8; ++axis) {
    one = durable_world(topology, {AxisSet{0xff} & ~(AxisSet{1} << axis)});
    EXPECT_FALSE(check_world({&one[0], 1}).empty()) << axis;
    one = durable_world(topology, {AxisSet{0xff} & ~(AxisSet{1} << axis), AxisSet{1} << axis});
    EXPECT_TRUE(check_world({&one[0], 1}).empty()) << axis;
  }
}

/// One that votes before it has committed is a danger to the others, which do all that they should.
TEST(World, TheRankThatCommitsLateIsNamed) {
  World world = durable_world(grid({4}), {1});
  std::rotate(world[2].ops.begin() + 1, world[2].ops.begin() + 3, world[2].ops.end());
  derive_waits(world[2]);
  const auto violations = check_world(world);
  ASSERT_EQ(violations.size(), 3u) << text(violations);
  for (const Violation& v : violations) {
    EXPECT_EQ(v.kind, Kind::durable_overwrite);
    EXPECT_NE(v.message.find("commit of rank 2"), std::string::npos) << v.message;
  }
  EXPECT_NE(plan_signature(world[2]), plan_signature(world[0]));
}

TEST(World, ACollectiveHasAGroup) {
  for (const std::int32_t group : {-1, 2}) {
    World world = two_ranks();
    world[1].ops[0].group = group;
    const auto violations = check_world(world);
    ASSERT_EQ(violations.size(), 1u) << text(violations);
    EXPECT_EQ(violations[0].kind, Kind::collective_order);
    EXPECT_EQ(violations[0].message, "#0 rank 1 comm all_gather L0.mlp has no group");
  }
}

TEST(World, MembersOfAnotherWorldAreRefused) {
  World world = two_ranks();
  world[1].kind = PlanKind::flush;
  EXPECT_NE(text(check_world(world)).find("rank 1 has another plan in mind"), std::string::npos);
  world = two_ranks();
  world[1].topology = grid({3}).at(1);
  EXPECT_NE(text(check_world(world)).find("rank 1 has another plan in mind"), std::string::npos);
  world = two_ranks();
  world[0].topology = world[1].topology;
  EXPECT_EQ(text(check_world(world)), "rank 1 is there twice\n");
}

// ---- messages between stages

Pipeline gpipe(RankId stages, int groups) { return {PipelineOrder::gpipe, stages, 1, groups}; }

TEST(World, StagesThatSendInTurnReachTheEnd) {
  for (const RankId stages : {2, 3, 7})
    for (const int groups : {1, 3, 8})
      for (const PipelineOrder order : {PipelineOrder::gpipe, PipelineOrder::one_forward_one_backward}) {
        const World world = test::toy_pipeline({order, stages, 1, groups});
        for (const StepPlan& plan : world) EXPECT_TRUE(check(plan).empty()) << text(check(plan));
        EXPECT_TRUE(check_world(world).empty()) << text(check_world(world));
      }
}

TEST(World, StagesInAnotherOrderThanTheirNeighbourAreFound) {
  const World world = test::toy_pipeline(gpipe(2, 3), [](RankId s) {
    std::vector<StagePass> order = stage_passes(gpipe(2, 3), s);
    if (s == 1) std::swap(order[0], order[1]);
    return order;
  });
  for (const StepPlan& plan : world) EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  const auto found = check_world(world);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().kind, Kind::collective_order);
  EXPECT_NE(found.front().message.find("mb0"), std::string::npos) << found.front().message;
  EXPECT_NE(found.front().message.find("mb1"), std::string::npos) << found.front().message;
}

/// Each stage by itself is legal: only together they wait for one another.
TEST(World, StagesThatWaitForOneAnotherAreADeadlock) {
  // The first goes forward with micro-batch 1 behind the backward pass of 0; the last goes back behind both.
  const World world = test::toy_pipeline(gpipe(2, 2), [](RankId s) {
    std::vector<StagePass> order = stage_passes(gpipe(2, 2), s);
    if (s == 0) std::swap(order[1], order[2]);
    return order;
  });
  for (const StepPlan& plan : world) EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  const auto found = check_world(world);
  EXPECT_EQ(kinds(found), (std::set<Kind>{Kind::deadlock})) << text(found);
  EXPECT_NE(text(found).find("the other end of its message does not come to it"), std::string::npos) << text(found);
}

TEST(World, AMessageThatNobodySendsIsADeadlock) {
  World world = test::toy_pipeline(gpipe(3, 2));
  std::erase_if(world[1].ops, [](const Op& op) { return op.kind == OpKind::send && op.group == 0; });
  derive_waits(world[1]);
  EXPECT_TRUE(check(world[1]).empty()) << text(check(world[1]));
  EXPECT_EQ(kinds(check_world(world)), (std::set<Kind>{Kind::deadlock}));
}

TEST(World, TwoSizesOfOneMessageNameBothOps) {
  World world = test::toy_pipeline(gpipe(2, 1));
  for (Op& op : world[1].ops)
    if (op.kind == OpKind::receive) op.bytes /= 2;
  const auto found = check_world(world);
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found.front().message.find("rank 0 send send"), std::string::npos) << found.front().message;
  EXPECT_NE(found.front().message.find("rank 1 receive receive"), std::string::npos) << found.front().message;
}

/// A message may be on its way before its receiver listens: who sends it does not know of the receiver's commit, and
/// who receives it knows of the sender's.
TEST(World, AMessageTellsItsReceiverAlone) {
  const auto world_of = [](bool answers) {
    World world = durable_world(grid({2}), {1});
    for (StepPlan& plan : world) {
      plan.ops.back().collective = plan.ops.back().group = -1;
      plan.groups = {1};
      plan.lanes.push_back({LaneKind::send, false, 0});
      plan.lanes.push_back({LaneKind::receive, false, 0});
      const bool sends = plan.topology.rank() == 0;
      const auto message = [&](OpKind kind, LaneId lane) {
        Op op = meeting(kind, lane, 0, 0);
        op.peer = 1 - static_cast<std::int32_t>(plan.topology.rank());
        const bool is_send = kind == OpKind::send;
        op.accesses = {{0, 0, 64, is_send ? Role::src : Role::dst, is_send ? Mode::read : Mode::write}};
        plan.ops.push_back(op);
      };
      message(sends ? OpKind::send : OpKind::receive, sends ? 3 : 4);
      if (answers) message(sends ? OpKind::receive : OpKind::send, sends ? 4 : 3);
      derive_waits(plan);
    }
    return world;
  };
  const auto one_way = check_world(world_of(false));
  ASSERT_EQ(one_way.size(), 1u) << text(one_way);
  EXPECT_NE(one_way[0].message.find("by #0 rank 0"), std::string::npos) << one_way[0].message;
  EXPECT_NE(one_way[0].message.find("commit of rank 1"), std::string::npos) << one_way[0].message;
  EXPECT_TRUE(check_world(world_of(true)).empty()) << text(check_world(world_of(true)));
}

}  // namespace
}  // namespace sluice
