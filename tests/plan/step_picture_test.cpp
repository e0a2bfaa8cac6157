// Pictures of steps hold what their timelines do, in a size that does not grow with the plan.
#include "offload/plan/step_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "offload/plan/finish.h"
#include "offload/plan/step_passes.h"
#include "offload/plan/work.h"
#include "tests/plan/random_plan.h"

namespace sluice {
namespace {

std::uint64_t sum(const MemoryPicture::Point& point) {
  return std::accumulate(point.bytes.begin(), point.bytes.end(), std::uint64_t{0});
}

TEST(StepPicture, HoldsEveryOpAndKeepsPeaks) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    StepPlan plan = random_plan(seed, {60, grid({2}).at(1), true, true});
    finish(plan);
    const Simulation s = simulate(plan, HardwareProfile());
    const StepPicture picture = step_picture(plan, s.timeline);
    std::size_t drawn = 0, counted = 0;
    for (const LanePicture& lane : picture.lanes) {
      double end = 0;
      for (const LaneSlice& slice : lane.slices) {
        EXPECT_GE(slice.start, end);
        EXPECT_LE(slice.busy, slice.end - slice.start + 1e-12);
        end = slice.end;
        drawn += slice.ops;
      }
    }
    for (const WorkPicture& work : picture.work) counted += work.ops;
    EXPECT_EQ(drawn, plan.ops.size());
    EXPECT_EQ(counted, plan.ops.size());
    ASSERT_EQ(picture.memory.size(), plan.arenas.size());
    for (const MemoryPicture& memory : picture.memory) {
      EXPECT_LE(memory.peak_bytes, memory.arena.arena_bytes) << "what is alive at once lies apart";
      std::uint64_t most = 0;
      for (const MemoryPicture::Point& point : memory.points) most = std::max(most, sum(point));
      EXPECT_EQ(most, memory.peak_bytes);
    }
  }
}

TEST(StepPicture, DoesNotGrowWithThePlan) {
  StepPlan plan;
  plan.units = {"a", "b"};
  plan.lanes = {{LaneKind::compute}, {LaneKind::nvme_read, true}};
  plan.arenas = {{Tier::host, 0, 1u << 30, 1u << 30}};
  Timeline timeline;
  for (OpId i = 0; i < 100000; ++i) {
    Op op;
    op.kind = i % 2 == 0 ? OpKind::forward : OpKind::read;
    op.lane = static_cast<LaneId>(i % 2);
    op.unit = i < 50000 ? 0 : 1;
    op.accesses = {{i, 0, 4096, Role::x_out, Mode::write}};
    plan.ops.push_back(op);
    plan.buffers.push_back({"x" + std::to_string(i), Tier::host, 4096 * (i == 77777 ? 100u : 1u)});
    timeline.push_back({i, 0, 10 + i * 1e-3, 10 + (i + (i % 2 == 0 ? 1 : 9)) * 1e-3});
  }
  const StepPicture picture = step_picture(plan, timeline);
  ASSERT_EQ(picture.lanes.size(), 2u);
  for (const LanePicture& lane : picture.lanes) {
    EXPECT_LE(lane.slices.size(), 1001u);
    EXPECT_EQ(lane.slices.front().name, std::string(lane.lane == LaneKind::compute ? "forward" : "read") + " a");
  }
  EXPECT_NEAR(picture.lanes[0].busy_seconds, 50, 1e-6);
  // The drive is busy all the time, though each read takes as long as nine ops.
  EXPECT_NEAR(picture.lanes[1].busy_seconds, picture.seconds, 2e-3);
  ASSERT_EQ(picture.memory.size(), 1u);
  EXPECT_LE(picture.memory[0].points.size(), 601u);
  EXPECT_GE(picture.memory[0].peak_bytes, 100u * 4096);
  EXPECT_EQ(std::ranges::max(picture.memory[0].points, {}, sum).bytes[static_cast<std::size_t>(Content::activations)],
            picture.memory[0].peak_bytes);
}

TEST(StepPicture, MergedOpsHaveTheNameOfWhatTakesMost) {
  StepPlan plan;
  plan.units = {"a", "b"};
  plan.lanes = {{LaneKind::compute}};
  Timeline timeline;
  double at = 0;
  const auto add = [&](OpKind kind, UnitId unit, double seconds) {
    Op op;
    op.kind = kind;
    op.unit = unit;
    op.micro_batch = 3;
    timeline.push_back({static_cast<OpId>(plan.ops.size()), 0, at, at + seconds});
    plan.ops.push_back(op);
    at += seconds;
  };
  add(OpKind::recompute, 0, 1e-6);
  add(OpKind::backward, 0, 3e-6);
  add(OpKind::recompute, 1, 1e-6);
  add(OpKind::forward, 1, 10);
  const std::vector<LaneSlice> slices = step_picture(plan, timeline).lanes.at(0).slices;
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].name, "backward and others a to b");
  EXPECT_EQ(slices[0].ops, 3u);
  EXPECT_EQ(slices[1].name, "forward b mb3");
}

TEST(StepPicture, KnowsWhatCopiesCarry) {
  StepPlan plan;
  plan.lanes = {{LaneKind::nvme_read, true}, {LaneKind::h2d}, {LaneKind::compute}};
  Buffer home{"home", Tier::nvme, 4096, Life::persistent, 2};
  home.holds = Holds::home;
  home.state = StateKind::exp_avg;
  plan.buffers = {home, {"staged", Tier::host, 4096}, {"open", Tier::device, 4096}, {"x", Tier::device, 4096}};
  const auto copy = [&](OpKind kind, LaneId lane, BufferId from, BufferId to) {
    Op op;
    op.kind = kind;
    op.lane = lane;
    op.accesses = {{from, 0, 4096, Role::src}, {to, 0, 4096, Role::dst, Mode::write}};
    plan.ops.push_back(op);
  };
  copy(OpKind::read, 0, 0, 1);
  copy(OpKind::copy, 1, 1, 2);
  Op forward;
  forward.kind = OpKind::forward;
  forward.lane = 2;
  forward.accesses = {{2, 0, 4096, Role::workspace, Mode::write}, {3, 0, 4096, Role::x_out, Mode::write}};
  plan.ops.push_back(forward);
  EXPECT_EQ(contents_of(plan), (std::vector{Content::optimizer_states, Content::optimizer_states, Content::workspace,
                                            Content::activations}));
  finish(plan);
  const std::vector<MemoryPicture> memory = memory_picture(plan, {{0, 0, 0, 1}, {1, 0, 1, 2}, {2, 0, 2, 3}});
  const auto drive = std::ranges::find(memory, Tier::nvme, [](const MemoryPicture& m) { return m.arena.tier; });
  ASSERT_NE(drive, memory.end());
  EXPECT_EQ(drive->points.front().bytes[static_cast<std::size_t>(Content::durable_copies)], 4096u) << "its second slot";
}

TEST(StepPasses, BoundsAddUpToThatOfPasses) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    StepPlan plan = random_plan(seed, {60, grid({2}).at(1), true, true});
    finish(plan);
    const HardwareProfile hw;
    double sum_of_bounds = 0;
    std::size_t times = 0;
    for (const PassBound& bound : pass_bounds(plan, hw)) sum_of_bounds += bound.bound_seconds, times += bound.times;
    EXPECT_NEAR(sum_of_bounds, planning::pass_bound(plan, hw), 1e-9 * sum_of_bounds) << "seed " << seed;
    EXPECT_EQ(times, step_passes(plan).all.size());
    EXPECT_EQ(pass_seconds(plan, simulate(plan, hw).timeline).size(), pass_bounds(plan, hw).size());
  }
}

}  // namespace
}  // namespace sluice
