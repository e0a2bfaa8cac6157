// check() against plans broken in every way that it names.
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/plan/finish.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/toy_pipeline.h"
#include "tests/plan/worlds.h"

namespace sluice {
namespace {

using test::text;
using Kind = Violation::Kind;

constexpr std::int32_t no_lane = -2;
constexpr LaneId compute = 0, h2d = 1, nvme_read = 2, nvme_write = 3, comm = 4, optimizer = 5, commit = 6;

/// Lanes as above, one group of all ranks.
StepPlan empty_plan(const Topology& topology = grid({1})) {
  StepPlan plan;
  plan.topology = topology;
  plan.units = {"L0.mlp"};
  plan.groups = {topology.all_axes()};
  for (const LaneKind k : {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write, LaneKind::comm,
                           LaneKind::optimizer, LaneKind::commit})
    plan.lanes.push_back({k, k == LaneKind::nvme_read || k == LaneKind::nvme_write, k == LaneKind::comm ? 0 : -1});
  return plan;
}

BufferId add_buffer(StepPlan& plan, const std::string& name, Tier tier, std::uint64_t bytes, Life life = Life::brief,
                    std::uint8_t slots = 1) {
  plan.buffers.push_back({name, tier, bytes, life, slots});
  return static_cast<BufferId>(plan.buffers.size() - 1);
}

Access whole(const StepPlan& plan, BufferId b, Mode mode, Slot slot = Slot::current) {
  return {b, 0, plan.buffers[b].bytes, Role::src, mode, slot};
}

OpId add_op(StepPlan& plan, OpKind kind, LaneId lane, std::vector<Access> accesses) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.unit = 0;
  op.accesses = std::move(accesses);
  plan.ops.push_back(op);
  return static_cast<OpId>(plan.ops.size() - 1);
}

/// home -> copy -> parameters -> forward -> x, then y from x.
StepPlan small_plan() {
  StepPlan plan = empty_plan();
  const BufferId home = add_buffer(plan, "home", Tier::host, 8192, Life::persistent);
  const BufferId parameters = add_buffer(plan, "parameters", Tier::device, 8192);
  const BufferId x = add_buffer(plan, "x", Tier::device, 8192);
  const BufferId y = add_buffer(plan, "y", Tier::device, 8192);
  add_op(plan, OpKind::copy, h2d, {whole(plan, home, Mode::read), whole(plan, parameters, Mode::write)});
  add_op(plan, OpKind::forward, compute, {whole(plan, parameters, Mode::read), whole(plan, x, Mode::write)});
  add_op(plan, OpKind::forward, compute, {whole(plan, x, Mode::read), whole(plan, y, Mode::write)});
  finish(plan);
  return plan;
}

bool has(const std::vector<Violation>& violations, Kind kind) {
  return std::any_of(violations.begin(), violations.end(), [kind](const Violation& v) { return v.kind == kind; });
}

TEST(Check, SmallPlanIsLegal) {
  const auto violations = check(small_plan());
  EXPECT_TRUE(violations.empty()) << text(violations);
}

TEST(Check, MissingWait) {
  StepPlan plan = small_plan();
  plan.ops[1].waits.clear();
  const auto violations = check(plan);
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].kind, Kind::unordered_access);
  EXPECT_EQ(violations[0].first, 0u);
  EXPECT_EQ(violations[0].second, 1u);
  EXPECT_EQ(violations[0].buffer, 1u);
  EXPECT_EQ(violations[0].message,
            "read of parameters by #1 compute forward L0.mlp is not ordered after its write by #0 h2d copy L0.mlp");
}

TEST(Check, MissingWaitOnTheIterationBefore) {
  StepPlan plan = small_plan();
  plan.cyclic = true;
  finish(plan);
  ASSERT_EQ(plan.ops[0].waits.size(), 1u);
  EXPECT_TRUE(plan.ops[0].waits[0].previous_iteration);
  plan.ops[0].waits.clear();
  EXPECT_TRUE(has(check(plan), Kind::shared_bytes)) << text(check(plan));
}

TEST(Check, WindowedLanesDoNotOrderTheirOps) {
  StepPlan plan = empty_plan();
  const BufferId state = add_buffer(plan, "state", Tier::nvme, 8192, Life::persistent);
  const BufferId staging = add_buffer(plan, "staging", Tier::host, 8192);
  add_op(plan, OpKind::read, nvme_read, {whole(plan, state, Mode::read), whole(plan, staging, Mode::write)});
  add_op(plan, OpKind::read, nvme_read, {whole(plan, state, Mode::read), whole(plan, staging, Mode::write)});
  finish(plan);
  EXPECT_EQ(plan.ops[1].waits, (std::vector<Wait>{{0, false}}));
  plan.ops[1].waits.clear();
  EXPECT_TRUE(has(check(plan), Kind::unordered_access));
  plan.lanes[nvme_read].windowed = false;
  EXPECT_TRUE(check(plan).empty());
}

TEST(Check, UnwrittenRead) {
  StepPlan plan = small_plan();
  plan.ops[0].accesses.pop_back();
  EXPECT_TRUE(has(check(plan), Kind::unwritten_read)) << text(check(plan));
}

TEST(Check, PartlyWrittenRead) {
  StepPlan plan = small_plan();
  plan.ops[0].accesses[1].bytes = 8000;
  const auto violations = check(plan);
  ASSERT_TRUE(has(violations, Kind::unwritten_read));
  EXPECT_NE(violations[0].message.find("byte 8000"), std::string::npos) << text(violations);
  plan.ops[1].accesses[0].bytes = 8000;
  EXPECT_TRUE(check(plan).empty());
}

TEST(Check, WorkspaceNeedsNoWriteBeforeIt) {
  StepPlan plan = small_plan();
  const BufferId w = add_buffer(plan, "workspace", Tier::device, 4096);
  Access a = whole(plan, w, Mode::read_write);
  plan.ops[1].accesses.push_back(a);
  finish(plan);
  EXPECT_TRUE(has(check(plan), Kind::unwritten_read));
  plan.ops[1].accesses.back().role = Role::workspace;
  EXPECT_TRUE(check(plan).empty());
}

TEST(Check, SharedBytesOfTransients) {
  StepPlan plan = small_plan();
  plan.buffers[2].offset = plan.buffers[1].offset;
  EXPECT_TRUE(has(check(plan), Kind::shared_bytes)) << "x is written while parameters are read";
}

TEST(Check, SharedBytesOfAPersistentBuffer) {
  StepPlan plan = empty_plan();
  add_buffer(plan, "state", Tier::device, 8192, Life::persistent);
  add_buffer(plan, "other", Tier::device, 4096, Life::persistent);
  const BufferId x = add_buffer(plan, "x", Tier::device, 4096);
  add_op(plan, OpKind::forward, compute, {whole(plan, x, Mode::write)});
  finish(plan);
  EXPECT_TRUE(check(plan).empty());
  StepPlan transient = plan;
  transient.buffers[x].offset = 4096;
  EXPECT_TRUE(has(check(transient), Kind::shared_bytes));
  StepPlan persistent = plan;
  persistent.buffers[1].offset = 4096;
  EXPECT_TRUE(has(check(persistent), Kind::shared_bytes));
}

TEST(Check, OutOfBounds) {
  StepPlan plan = small_plan();
  plan.ops[2].accesses[1].offset = 4096;
  EXPECT_TRUE(has(check(plan), Kind::out_of_bounds));
  plan = small_plan();
  plan.buffers[3].offset += 1u << 20;
  EXPECT_TRUE(has(check(plan), Kind::out_of_bounds));
  plan = small_plan();
  plan.arenas.clear();
  EXPECT_TRUE(has(check(plan), Kind::out_of_bounds));
  plan = small_plan();
  plan.ops[2].accesses[1].offset = ~0ull - 100;
  EXPECT_TRUE(has(check(plan), Kind::out_of_bounds));
}

TEST(Check, OverBudget) {
  StepPlan plan = small_plan();
  for (Arena& a : plan.arenas) a.budget_bytes = a.arena_bytes;
  EXPECT_TRUE(check(plan).empty());
  plan.arenas[0].budget_bytes -= 1;
  EXPECT_TRUE(has(check(plan), Kind::over_budget));
}

/// Reads the current slot and writes the next one, then sync and commit.
StepPlan durable_plan() {
  StepPlan plan = empty_plan();
  plan.cyclic = true;
  const BufferId state = add_buffer(plan, "state", Tier::nvme, 8192, Life::persistent, 2);
  const BufferId staging = add_buffer(plan, "staging", Tier::host, 8192);
  add_op(plan, OpKind::read, nvme_read, {whole(plan, state, Mode::read), whole(plan, staging, Mode::write)});
  add_op(plan, OpKind::update, optimizer, {whole(plan, staging, Mode::read_write)});
  add_op(plan, OpKind::write, nvme_write,
         {whole(plan, staging, Mode::read), whole(plan, state, Mode::write, Slot::next)});
  add_op(plan, OpKind::control, optimizer, {});
  add_op(plan, OpKind::sync, commit, {});
  add_op(plan, OpKind::commit, commit, {});
  finish(plan);
  return plan;
}

TEST(Check, DurableOrderIsDerived) {
  const StepPlan plan = durable_plan();
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  EXPECT_TRUE(plan.ops[5].waits.empty()) << "it follows the sync on its lane";
  // The write waits for the commit of the iteration before, the sync for the write and the vote.
  const auto& waits = plan.ops[2].waits;
  EXPECT_NE(std::find(waits.begin(), waits.end(), Wait{5, true}), waits.end());
  EXPECT_EQ(plan.ops[4].waits, (std::vector<Wait>{{2, false}, {3, false}}));
}

TEST(Check, DurableOverwrite) {
  StepPlan current = durable_plan();
  current.ops[2].accesses[1].slot = Slot::current;
  EXPECT_TRUE(has(check(current), Kind::durable_overwrite));
  for (const OpId op : {2u, 4u}) {
    StepPlan plan = durable_plan();
    std::erase_if(plan.ops[op].waits, [](const Wait& w) { return w.op != 1; });
    EXPECT_TRUE(has(check(plan), Kind::durable_overwrite)) << describe(plan, op) << "\n" << text(check(plan));
  }
  StepPlan early = durable_plan();
  std::swap(early.ops[4].kind, early.ops[5].kind);
  EXPECT_TRUE(has(check(early), Kind::durable_overwrite));
  StepPlan uncommitted = durable_plan();
  uncommitted.ops.resize(4);
  derive_waits(uncommitted);
  EXPECT_TRUE(has(check(uncommitted), Kind::durable_overwrite));
}

/// Updates in both passes: what is behind is written ahead of the commit, the other state behind it.
StepPlan both_passes_plan() {
  StepPlan plan = empty_plan();
  plan.cyclic = true;
  for (const char* name : {"late", "early"}) {
    const BufferId state = add_buffer(plan, name, Tier::nvme, 8192, Life::persistent, 2);
    plan.buffers[state].behind = state == 0;
    const BufferId staging = add_buffer(plan, std::string(name) + ".staging", Tier::host, 8192);
    add_op(plan, OpKind::read, nvme_read, {whole(plan, state, Mode::read), whole(plan, staging, Mode::write)});
    add_op(plan, OpKind::update, optimizer, {whole(plan, staging, Mode::read_write)});
    add_op(plan, OpKind::write, nvme_write,
           {whole(plan, staging, Mode::read), whole(plan, state, Mode::write, Slot::next)});
    if (!plan.buffers[state].behind) continue;
    add_op(plan, OpKind::sync, commit, {});
    add_op(plan, OpKind::commit, commit, {});
  }
  add_op(plan, OpKind::control, optimizer, {});
  finish(plan);
  return plan;
}

TEST(Check, WhatIsWrittenBehindACommitIsOfTheNextOne) {
  constexpr OpId sync = 3, committed = 4, early_write = 7;
  const StepPlan plan = both_passes_plan();
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  const auto waits = [&](OpId op, const Wait& wait) { return std::ranges::count(plan.ops[op].waits, wait) > 0; };
  EXPECT_TRUE(waits(early_write, {committed, false})) << "until then the slot is what the run would go back to";
  StepPlan overwrites = plan, hurries = plan;
  std::erase(overwrites.ops[early_write].waits, Wait{committed, false});
  EXPECT_TRUE(has(check(overwrites), Kind::durable_overwrite));
  hurries.ops[sync].waits.clear();
  const std::string found = text(check(hurries));
  EXPECT_NE(found.find("is not ordered after the write of early"), std::string::npos) << found;
  // Ahead of the commit it would be told of a step too early, ...
  StepPlan hasty = plan;
  std::rotate(hasty.ops.begin() + sync, hasty.ops.begin() + committed + 1, hasty.ops.begin() + early_write + 1);
  finish(hasty);
  EXPECT_TRUE(has(check(hasty), Kind::durable_overwrite));
  // ... and if nothing were behind, a step too late.
  StepPlan alike = plan;
  alike.buffers[0].behind = false;
  finish(alike);
  EXPECT_TRUE(has(check(alike), Kind::durable_overwrite));
  StepPlan all_behind = plan;
  all_behind.buffers[2].behind = true;
  finish(all_behind);
  EXPECT_TRUE(has(check(all_behind), Kind::durable_overwrite));
  // A plan in which all wait for the forward pass has nothing that is behind: its first iteration commits too.
  StepPlan ahead = durable_plan();
  ahead.buffers[0].behind = true;
  EXPECT_TRUE(has(check(ahead), Kind::bad_slot));
}

// What a device has counted of its updates is known before they are committed.
TEST(Check, ACommitWaitsForTheVerdictOnUpdates) {
  StepPlan plan = durable_plan();
  plan.ops[3].kind = OpKind::verify;
  finish(plan);
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  std::erase_if(plan.ops[4].waits, [](const Wait& w) { return w.op == 3; });
  EXPECT_TRUE(has(check(plan), Kind::durable_overwrite));
}

TEST(Check, BadSlot) {
  StepPlan plan = small_plan();
  plan.ops[0].accesses[0].slot = Slot::next;
  EXPECT_TRUE(has(check(plan), Kind::bad_slot));
  plan = small_plan();
  plan.buffers[0].slots = 3;
  EXPECT_TRUE(has(check(plan), Kind::bad_slot));
}

/// One of two ranks gathers three times.
StepPlan gather_plan() {
  StepPlan plan = empty_plan(grid({2}));
  for (const std::int32_t turn : {0, 1, 2}) {
    const OpId op = add_op(plan, OpKind::all_gather, comm, {});
    plan.ops[op].collective = turn;
    plan.ops[op].group = 0;
  }
  finish(plan);
  return plan;
}

TEST(Check, CollectivesAreNumberedInTurn) {
  StepPlan plan = gather_plan();
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  std::swap(plan.ops[1].collective, plan.ops[2].collective);
  const auto violations = check(plan);
  ASSERT_EQ(violations.size(), 2u) << text(violations);
  EXPECT_EQ(violations[0].kind, Kind::collective_order);
  EXPECT_EQ(violations[0].first, 1u);
  EXPECT_EQ(violations[0].message, "#1 rank 0 comm all_gather L0.mlp is collective 2 of its group, in turn 1");
  EXPECT_EQ(violations[1].message, "#2 rank 0 comm all_gather L0.mlp is collective 1 of its group, in turn 2");
  plan = gather_plan();
  plan.ops.erase(plan.ops.begin());
  EXPECT_TRUE(has(check(plan), Kind::collective_order)) << "numbers begin with 0";
  plan = gather_plan();
  plan.ops[2].collective = 1;
  EXPECT_TRUE(has(check(plan), Kind::collective_order)) << "each number is one collective's";
}

TEST(Check, GroupsAreNumberedApart) {
  StepPlan plan = gather_plan();
  plan.groups.push_back(plan.groups[0]);
  plan.lanes.push_back({LaneKind::comm, false, 1});
  plan.ops[1].group = 1;
  plan.ops[1].lane = static_cast<LaneId>(plan.lanes.size() - 1);
  EXPECT_TRUE(has(check(plan), Kind::collective_order));
  plan.ops[1].collective = 0;
  plan.ops[2].collective = 1;
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
}

TEST(Check, AGroupMeetsOnOneLane) {
  StepPlan plan = gather_plan();
  plan.ops[1].lane = optimizer;
  const auto violations = check(plan);
  ASSERT_TRUE(has(violations, Kind::collective_order));
  EXPECT_EQ(violations[0].message,
            "#0 rank 0 comm all_gather L0.mlp and #1 rank 0 optimizer all_gather L0.mlp meet one group on two lanes");
  plan = gather_plan();
  plan.lanes[comm].windowed = true;
  EXPECT_TRUE(has(check(plan), Kind::collective_order)) << "what is windowed has no order of ends";
}

TEST(Check, CollectivesInDeviceMemoryAreOnOneLane) {
  const auto plan_of = [](Tier tier, std::int32_t lane_of_first, std::int32_t lane_of_second) {
    StepPlan plan = empty_plan(grid({2}));
    plan.groups.push_back(plan.groups[0]);
    plan.lanes[comm].group = lane_of_first;
    plan.lanes.push_back({LaneKind::comm, false, lane_of_second});
    const BufferId buffer = add_buffer(plan, "whole", tier, 8192);
    for (const std::int32_t group : {0, 1}) {
      const bool is_alone = group == 1 && lane_of_second != no_lane;
      const LaneId lane = is_alone ? static_cast<LaneId>(plan.lanes.size() - 1) : comm;
      const OpId op = add_op(plan, OpKind::all_gather, lane, {whole(plan, buffer, Mode::write)});
      plan.ops[op].collective = 0;
      plan.ops[op].group = group;
    }
    if (lane_of_second == no_lane) plan.lanes.pop_back();
    finish(plan);
    return plan;
  };
  EXPECT_TRUE(check(plan_of(Tier::device, -1, no_lane)).empty()) << text(check(plan_of(Tier::device, -1, no_lane)));
  const auto beside = check(plan_of(Tier::device, -1, 1));
  ASSERT_EQ(beside.size(), 1u) << text(beside);
  EXPECT_EQ(beside[0].kind, Kind::collective_order);
  EXPECT_EQ(beside[0].message,
            "#1 rank 0 comm all_gather L0.mlp meets in device memory, and not on the device's one lane for that");
  const auto two = check(plan_of(Tier::device, -1, -1));
  ASSERT_EQ(two.size(), 1u) << text(two);
  EXPECT_EQ(two[0].message, "the collectives of the device are on 2 lanes");
  EXPECT_TRUE(has(check(plan_of(Tier::host, -1, no_lane)), Kind::collective_order)) << "host memory is no device's";
}

TEST(Check, ACollectiveHasAGroup) {
  for (const std::int32_t group : {-1, 1}) {
    StepPlan plan = gather_plan();
    plan.ops[0].group = group;
    const auto violations = check(plan);
    ASSERT_TRUE(has(violations, Kind::collective_order));
    EXPECT_EQ(violations[0].message, "#0 rank 0 comm all_gather L0.mlp has no group");
  }
}

/// What others do is check_world's question.
TEST(Check, OtherRanksMayBeAbsent) {
  StepPlan plan = gather_plan();
  plan.ops.pop_back();
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
}

TEST(Check, AGatherNeedsOnlyItsOwnPartWritten) {
  for (const RankId rank : {0, 1, 2}) {
    StepPlan plan = empty_plan(grid({3}).at(rank));
    const BufferId open = add_buffer(plan, "open", Tier::device, 3 * 4096);
    add_op(plan, OpKind::copy, h2d, {{open, rank * 4096u, 4096, Role::dst, Mode::write}});
    const OpId gather = add_op(plan, OpKind::all_gather, comm, {whole(plan, open, Mode::read_write)});
    plan.ops[gather].collective = plan.ops[gather].group = 0;
    finish(plan);
    EXPECT_TRUE(check(plan).empty()) << text(check(plan));
    plan.ops[0].accesses[0].offset = (rank + 1u) % 3 * 4096;
    const auto violations = check(plan);
    ASSERT_TRUE(has(violations, Kind::unwritten_read)) << "rank " << rank << " fills another rank's part";
    EXPECT_EQ(violations[0].first, gather);
  }
}

/// The part is that of the rank's place in the group, not of its number.
TEST(Check, APartIsThatOfThePlaceInTheGroup) {
  StepPlan plan = empty_plan(grid({2, 3}).at(5));
  plan.groups = {2};
  const BufferId open = add_buffer(plan, "open", Tier::device, 3 * 4096);
  add_op(plan, OpKind::copy, h2d, {{open, 2 * 4096, 4096, Role::dst, Mode::write}});
  const OpId gather = add_op(plan, OpKind::all_gather, comm, {whole(plan, open, Mode::read_write)});
  plan.ops[gather].collective = plan.ops[gather].group = 0;
  finish(plan);
  EXPECT_TRUE(check(plan).empty()) << text(check(plan));
  plan.topology.coordinates[1] = 1;
  EXPECT_TRUE(has(check(plan), Kind::unwritten_read));
}

TEST(Check, DeadlockByAWaitForALaterOp) {
  StepPlan plan = small_plan();
  plan.ops[0].waits.push_back({2, false});
  const auto violations = check(plan);
  ASSERT_TRUE(has(violations, Kind::deadlock));
  EXPECT_EQ(violations[0].message.find("#1 compute forward L0.mlp never starts"), 0u) << text(violations);
}

/// A collective that this rank does not come to by itself.
TEST(Check, DeadlockBehindACollective) {
  StepPlan plan = gather_plan();
  // The first gather waits for an op that comes after the second.
  const OpId after = add_op(plan, OpKind::copy, h2d, {});
  plan.ops[after].waits = {{1, false}};
  plan.ops[0].waits = {{after, false}};
  const auto violations = check(plan, 100);
  ASSERT_EQ(violations.size(), 2u) << text(violations);
  EXPECT_EQ(violations[0].kind, Kind::deadlock);
  EXPECT_EQ(violations[0].first, after);
  EXPECT_EQ(violations[1].first, 0u);
}

TEST(Check, StopsAtTheLimit) {
  StepPlan plan = random_plan(9, {40, {}, true, true});
  finish(plan);
  for (Op& op : plan.ops) op.waits.clear();
  EXPECT_EQ(check(plan, 3).size(), 3u);
  EXPECT_GT(check(plan, 1000).size(), 3u);
}

TEST(Check, MessagesAreNumberedByPeerOnLanesOfTheirOwn) {
  const auto broken = [](const std::function<void(StepPlan&)>& how) {
    StepPlan plan = test::toy_stage({PipelineOrder::gpipe, 3, 1, 2}, 1);
    EXPECT_TRUE(check(plan).empty());
    how(plan);
    const auto found = check(plan);
    return found.empty() ? std::string() : found.front().message;
  };
  const auto first = [](StepPlan& plan, OpKind kind) -> Op& { return *std::ranges::find(plan.ops, kind, &Op::kind); };
  const auto contains = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { first(p, OpKind::send).collective = 1; }),
               "is message 1 of its group, in turn 0");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { first(p, OpKind::send).peer = 1; }), "at the other end");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { first(p, OpKind::receive).peer = 3; }), "at the other end");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { first(p, OpKind::receive).group = 2; }), "has no group");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { first(p, OpKind::send).lane = 3; }), "meet one group on two lanes");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) { p.lanes[1].windowed = true; }), "windowed lane");
  EXPECT_PRED2(contains, broken([&](StepPlan& p) {
                 Op gather = first(p, OpKind::receive);
                 gather.kind = OpKind::all_gather;
                 gather.peer = -1;
                 p.ops.push_back(gather);
               }),
               "use one group for messages and collectives");
}

}  // namespace
}  // namespace sluice
