// Ranks side by side: check_world() against a graph of all starts and ends, and the small world against the full one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "offload/plan/program.h"
#include "sluice/random.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/worlds.h"

namespace sluice {
namespace {

using test::all_ranks;
using test::kinds;
using test::text;
using test::World;

World random_world(std::uint64_t seed, RandomPlanOptions options, const std::vector<Topology>& ranks) {
  World world;
  for (const Topology& rank : ranks) {
    options.topology = rank;
    finish(world.emplace_back(random_plan(seed, options)), PackEffort::quick);
  }
  return world;
}

std::vector<std::vector<RankId>> grids() {
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

TEST(SmallWorld, TheSmallWorldHasTwoRanksAlongEachAxis) {
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

TEST(SmallWorld, LegalPlansOfEveryShapePass) {
  int durable_writes = 0, collectives = 0;
  for (const std::vector<RankId>& sizes : grids())
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

TEST(SmallWorld, SoundRanksHaveOneSignature) {
  std::set<std::uint64_t> of_worlds;
  int worlds = 0;
  for (const std::vector<RankId>& sizes : grids())
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

TEST(SmallWorld, ASignatureSeesWhatRanksHaveInCommon) {
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

TEST(SmallWorld, SmallProofsAgreeWithTheFullOne) {
  std::map<std::string, Tally> tallies;
  Tally all;
  for (const Breakage& breakage : breakages)
    for (const std::vector<RankId>& sizes : grids())
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

TEST(SmallWorld, AMemberThatIsBrokenAloneIsFound) {
  std::map<std::string, Tally> tallies;
  for (const Breakage& breakage : breakages)
    for (const std::vector<RankId>& sizes : grids())
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

}  // namespace
}  // namespace sluice
