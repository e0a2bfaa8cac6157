// Plans on a device that works in queues of its own: the same bits, peaks and bytes as on the host, whatever runs when.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/run/rig.h"
#include "tests/run/toy_plan.h"

namespace sluice::test {
namespace {

RigOptions queued(std::uint64_t content_seed, std::uint64_t delays) {
  RigOptions options;
  options.content_seed = content_seed;
  options.queued = true;
  options.queue_delay_seed = delays;
  return options;
}

TEST(QueueLanes, RandomPlansMeanTheirProgramOrder) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<StepPlan> plans = random_plans({.seed = seed, .ops = 80, .cyclic = seed % 4 != 0});
    expect_same_as_reference(plans, {}, queued(seed, seed % 3), 4);
    if (HasFailure()) return;
  }
}

TEST(QueueLanes, LongRunsSetMarksAnew) {
  const std::vector<StepPlan> plans = random_plans({.seed = 3, .ops = 80});
  expect_same_as_reference(plans, {}, queued(3, 0), 40);
  expect_same_as_reference(plans, {}, queued(3, 9), 15);
}

TEST(QueueLanes, RandomPlansOverRanks) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<StepPlan> plans =
        random_plans({.seed = seed, .ranks = static_cast<RankId>(2 + seed % 2 * 2), .ops = 40});
    expect_same_as_reference(plans, {}, queued(seed, seed), 3);
    if (HasFailure()) return;
  }
}

TEST(QueueLanes, TrainingStep) {
  for (const RankId ranks : {1, 2}) {
    const ToyTraining toy = toy_training(ranks, 3, 2);
    for (const std::uint64_t delays : {0, 5}) {
      RigOptions options = queued(1, delays);
      options.executor.delay_seed = delays;
      expect_same_as_reference(toy.plans, toy.units, options, 4);
    }
  }
}

TEST(QueueLanes, AFaultOfTheDeviceNamesItsOpAndStopsTheRun) {
  const ToyTraining toy = toy_training(1, 3, 2);
  std::atomic<int> computed{0};
  RigOptions options = queued(1, 4);
  options.device_fault = [&](const Op&) { return ++computed == 5 ? Status(fault("an illegal address")) : success(); };
  Rig rig(toy.plans, toy.units, options);
  ASSERT_TRUE(rig.initialise().ok());
  const Status done = rig.iterate(4);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::fault);
  EXPECT_NE(done.error().message.find("an illegal address"), std::string::npos);
  EXPECT_NE(done.error().message.find("#"), std::string::npos) << done.error().message;
}

TEST(QueueLanes, AStepWhoseUpdateDivergesIsNotCommitted) {
  const ToyTraining toy = toy_training(1, 3, 2);
  for (const std::uint64_t delays : {0, 1, 2, 3}) {
    RigOptions options = queued(1, delays);
    options.diverges_in_step = 3;
    Rig rig(toy.plans, toy.units, options);
    ASSERT_TRUE(rig.initialise().ok());
    const Status done = rig.iterate(8);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, ErrorCode::fault);
    EXPECT_NE(done.error().message.find("step 3: 1 parameters of U1 diverged"), std::string::npos)
        << done.error().message;
    // The first one has no update.
    EXPECT_EQ(rig.commits().size(), 3u);
  }
}

TEST(QueueLanes, StopsAtAnyMoment) {
  const ToyTraining toy = toy_training(2, 3, 2);
  for (std::uint64_t i = 0; i < 30; ++i) {
    Rig rig(toy.plans, toy.units, queued(1, i));
    ASSERT_TRUE(rig.initialise().ok());
    std::thread stopper([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(i * 200));
      rig.team().stop({ErrorCode::cancelled, "enough"});
    });
    const Status done = rig.iterate(4);
    stopper.join();
    if (!done.ok()) {
      EXPECT_EQ(done.error().code, ErrorCode::cancelled) << done.error().message;
    }
  }
}

TEST(QueueLanes, WhatIsPutInWhileARunIsStoppedHasEndedBehindIt) {
  const ToyTraining toy = toy_training(1, 3, 2);
  std::atomic<int> taken{0}, ran{0};
  Executor* executor = nullptr;
  RigOptions options = queued(1, 0);
  options.device_takes = [&](const Op&) {
    if (++taken != 3) return;
    while (ran != 2) std::this_thread::yield();
    executor->stop({ErrorCode::cancelled, "enough"});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // others hear of it, and end
  };
  options.device_fault = [&](const Op&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++ran;
    return success();
  };
  Rig rig(toy.plans, toy.units, options);
  executor = &rig.executor();
  ASSERT_TRUE(rig.initialise().ok());
  EXPECT_FALSE(rig.iterate(4).ok());
  EXPECT_EQ(taken, 3);
  EXPECT_EQ(ran, 3);
}

TEST(QueueLanes, TimelineHasEveryOp) {
  const ToyTraining toy = toy_training(1, 2, 1);
  RigOptions options = queued(1, 0);
  options.executor.record_timeline = true;
  Rig rig(toy.plans, toy.units, options);
  ASSERT_TRUE(rig.initialise().ok());
  ASSERT_TRUE(rig.iterate(3).ok());
  const Timeline spans = rig.executor().timeline();
  ASSERT_EQ(spans.size(), toy.plan().ops.size());
  for (const Span& span : spans) {
    EXPECT_GT(span.start, 0);
    EXPECT_LE(span.start, span.end);
  }
}

}  // namespace
}  // namespace sluice::test
