// Ranks side by side, by hand: what check_world() finds between them, and how it says so.
#include "offload/plan/world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/plan/random_plan.h"
#include "tests/plan/toy_pipeline.h"
#include "tests/plan/worlds.h"

namespace sluice {
namespace {

using test::all_ranks;
using test::kinds;
using test::text;
using test::World;
using Kind = Violation::Kind;

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
