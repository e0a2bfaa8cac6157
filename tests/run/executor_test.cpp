// The executor against program order: whatever the lanes' timing, the same bits, peaks and bytes.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/comm/in_process.h"
#include "tests/run/rig.h"
#include "tests/run/toy_plan.h"

namespace sluice::test {
namespace {

TEST(Executor, RandomPlansMeanTheirProgramOrder) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<StepPlan> plans = random_plans({.seed = seed, .ops = 80, .cyclic = seed % 4 != 0});
    expect_same_as_reference(plans, {}, {.content_seed = seed}, 4);
    if (HasFailure()) return;
  }
}

TEST(Executor, RandomPlansOverRanks) {
  for (const RankId ranks : {2, 4})
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, seed " + std::to_string(seed));
      const std::vector<StepPlan> plans = random_plans({.seed = seed, .ranks = ranks, .ops = 40});
      expect_same_as_reference(plans, {}, {.content_seed = seed}, 3);
      if (HasFailure()) return;
    }
}

TEST(Executor, ARankThatCanNotBeginWakesTheOthers) {
  InProcessWorld world(2);
  HostDevice host;
  auto memory = Memory::create({}, host);
  ASSERT_TRUE(memory.ok());
  StepPlan plan;
  plan.topology = Topology::of({{"dp", 2}}, 0);
  plan.groups = {1};
  plan.lanes = {{LaneKind::comm, false, -1}};
  ASSERT_TRUE(world.communicator(1).prepare(plan.topology.at(1), plan.groups).ok());
  Executor executor({.memory = &*memory, .communicator = &world.communicator(0), .units = {}}, {});
  const Status begun = executor.begin(plan);
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.error().code, ErrorCode::bad_request);
  const Status other = world.communicator(1).still_waits(std::chrono::seconds(0));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::cancelled);
  EXPECT_EQ(other.error().message, begun.error().message);
}

TEST(Executor, RandomDelaysChangeNothing) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<StepPlan> plans =
        random_plans({.seed = 100 + seed / 4, .ranks = static_cast<RankId>(1 + seed % 2), .ops = 40});
    expect_same_as_reference(plans, {}, {.executor = {.delay_seed = seed}, .content_seed = seed}, 3);
    if (HasFailure()) return;
  }
}

TEST(Executor, TrainingStep) {
  for (const RankId ranks : {1, 2, 4}) {
    const ToyTraining toy = toy_training(ranks, 3, 2);
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(threads) + " optimizer threads");
      expect_same_as_reference(toy.plans, toy.units, {.executor = {.optimizer_threads = threads}}, 4);
      expect_same_as_reference(toy.plans, toy.units, {.executor = {.optimizer_threads = threads, .delay_seed = 5}}, 3);
    }
  }
}

TEST(Executor, ReorderedShortAndInterruptedTransfersChangeNothing) {
  const ToyTraining toy = toy_training(1, 3, 2);
  RigOptions options;
  options.queue.faults = FaultOptions{.seed = 3, .short_probability = 0.2, .interrupt_probability = 0.2, .hold_max = 6};
  for (const auto kind : {IoBackendKind::automatic, IoBackendKind::threads}) {
    options.queue.backend = kind;
    Reference reference(toy.plans, toy.units, options.content_seed);
    for (std::uint64_t i = 0; i < 4; ++i) reference.iterate(Rig::params(i));
    Rig rig(toy.plans, toy.units, options);
    ASSERT_TRUE(rig.initialise().ok());
    const Status done = rig.iterate(4);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(rig.difference(reference), "");
  }
}

TEST(Executor, SeveralPlansShareThePersistentBuffers) {
  const ToyTraining toy = toy_training(1, 2, 1);
  Reference reference(toy.plans, toy.units, 1);
  Rig rig(toy.plans, toy.units, {});
  ASSERT_TRUE(rig.initialise().ok());
  // Another plan in between does not change which buffers the caller's ids mean.
  StepPlan other = toy.plan();
  std::reverse(other.buffers.begin(), other.buffers.end());
  other.ops.clear();
  ASSERT_TRUE(rig.executor().begin(other).ok());
  ASSERT_TRUE(rig.team().end().ok());
  // An odd number of commits first, so that the second run starts in the other slot.
  for (const int iterations : {3, 2}) {
    for (int i = 0; i < iterations; ++i) reference.iterate(Rig::params(static_cast<std::uint64_t>(i)));
    ASSERT_TRUE(rig.iterate(iterations).ok());
    EXPECT_EQ(rig.difference(reference), "");
  }
  const std::vector<std::pair<RankId, std::uint8_t>> expected{{0, 1}, {0, 0}, {0, 1}, {0, 0}, {0, 1}};
  EXPECT_EQ(rig.commits(), expected);
  EXPECT_EQ(rig.store()->parity(), 1);
}

TEST(Executor, TimelineHasEveryOpAfterItsWaits) {
  const ToyTraining toy = toy_training(2, 2, 1);
  Rig rig(toy.plans, toy.units, {.executor = {.record_timeline = true}});
  ASSERT_TRUE(rig.initialise().ok());
  ASSERT_TRUE(rig.iterate(3).ok());
  const Timeline spans = rig.executor().timeline();
  ASSERT_EQ(spans.size(), toy.plan().ops.size());
  for (const Span& span : spans) {
    EXPECT_EQ(span.iteration, 2u);
    EXPECT_LE(span.start, span.end);
    for (const Wait& wait : toy.plan().ops[span.op].waits) {
      if (wait.previous_iteration) continue;
      EXPECT_LE(spans[wait.op].end, span.start);
    }
  }
}

TEST(Executor, OnlySoManyIterationsAreReleasedAhead) {
  const ToyTraining toy = toy_training(1, 1, 1);
  Rig rig(toy.plans, toy.units, {});
  ASSERT_TRUE(rig.initialise().ok());
  ASSERT_TRUE(rig.begin().ok());
  EXPECT_FALSE(rig.begin().ok());
  EXPECT_FALSE(rig.team().wait(0).ok());
  for (std::uint64_t i = 0; i < Executor::max_released; ++i) ASSERT_TRUE(rig.team().release(Rig::params(i)).ok());
  EXPECT_FALSE(rig.team().release(Rig::params(Executor::max_released)).ok());
  ASSERT_TRUE(rig.team().wait(0).ok());
  EXPECT_TRUE(rig.team().release(Rig::params(Executor::max_released)).ok());
  EXPECT_TRUE(rig.team().end().ok());
}

TEST(Executor, RefusesPlansThatItCanNotRun) {
  const ToyTraining toy = toy_training(1, 2, 1);
  Rig rig(toy.plans, toy.units, {});
  const auto refused = [&](const StepPlan& plan) {
    const Status status = rig.executor().begin(plan);
    EXPECT_FALSE(status.ok());
    return status.ok() ? std::string() : status.error().message;
  };
  StepPlan plan = toy.plan();
  plan.buffers[0].offset += 1u << 30;
  EXPECT_NE(refused(plan).find(plan.buffers[0].name), std::string::npos);
  plan = toy.plan();
  for (Op& op : plan.ops)
    if (op.kind == OpKind::update) op.accesses.erase(op.accesses.begin());
  EXPECT_NE(refused(plan).find("lacks the operand"), std::string::npos);
  plan = toy.plan();
  for (Op& op : plan.ops) std::erase_if(op.accesses, [](const Access& a) { return a.role == Role::diverged; });
  EXPECT_NE(refused(plan).find("lacks the operand"), std::string::npos) << "a device counts what has diverged";
  plan = toy.plan();
  for (Op& op : plan.ops)
    if (op.kind == OpKind::read) op.accesses[0].offset += 4096;
  EXPECT_NE(refused(plan).find("#"), std::string::npos);
  plan = toy.plan();
  for (Op& op : plan.ops)
    if (op.kind == OpKind::update) op.unit = 7;
  EXPECT_NE(refused(plan).find("unit"), std::string::npos);
  EXPECT_TRUE(rig.begin().ok());
  EXPECT_TRUE(rig.team().end().ok());
}

}  // namespace
}  // namespace sluice::test
