// The orders of a pipeline against their textbook figures, and as plans of stages that meet.
#include "src/schedule/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "offload/plan/simulate.h"
#include "offload/plan/world.h"
#include "tests/plan/toy_pipeline.h"

namespace sluice {
namespace {

using Kind = StagePass::Kind;

/// Seconds of one group, over all chunks of a stage.
struct Seconds {
  double forward = 1, input = 1, weight = 1;
};
struct Timed {
  double bubble = 0;      ///< the longest, of a stage between its first pass and its last
  double makespan = 0;
  std::vector<double> held;  ///< by stage: groups whose activations are there, at most
};

/// Every stage makes its passes in turn, as soon as what they need is there.
Timed run(const Pipeline& p, const Seconds& seconds) {
  std::vector<std::vector<StagePass>> orders;
  for (RankId s = 0; s < p.stages; ++s) orders.push_back(stage_passes(p, s));
  const auto lasts = [&](Kind kind) {
    const double all = kind == Kind::forward          ? seconds.forward
                       : kind == Kind::backward_input ? seconds.input
                       : kind == Kind::backward       ? seconds.input + seconds.weight
                                                      : seconds.weight;
    return all / p.chunks;
  };
  struct Stage {
    std::size_t at = 0;
    double now = 0, begun = -1, held = 0;
  };
  std::vector<Stage> stages(p.stages);
  Timed timed{0, 0, std::vector<double>(p.stages)};
  std::map<std::tuple<bool, int, int>, double> ended;  // whether backward, place, group
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (RankId s = 0; s < p.stages; ++s)
      for (Stage& stage = stages[s]; stage.at < orders[s].size(); ++stage.at, goes_on = true) {
        const StagePass& pass = orders[s][stage.at];
        const int place = place_of(p, s, pass.chunk);
        const bool is_forward = pass.kind == Kind::forward, is_weight = pass.kind == Kind::backward_weight;
        std::vector<std::tuple<bool, int, int>> needs;
        if (is_forward && place > 0) needs.emplace_back(false, place - 1, pass.group);
        if (!is_forward) needs.emplace_back(false, place, pass.group);
        if (!is_forward && !is_weight && place + 1 < p.places()) needs.emplace_back(true, place + 1, pass.group);
        if (is_weight) needs.emplace_back(true, place, pass.group);
        if (!std::ranges::all_of(needs, [&](const auto& need) { return ended.contains(need); })) break;
        double start = stage.now;
        for (const auto& need : needs) start = std::max(start, ended[need]);
        if (stage.begun < 0) stage.begun = start;
        stage.now = start + lasts(pass.kind);
        if (!is_weight) ended[{!is_forward, place, pass.group}] = stage.now;
        if (is_forward) timed.held[s] = std::max(timed.held[s], stage.held += 1.0 / p.chunks);
        if (pass.kind == Kind::backward || is_weight) stage.held -= 1.0 / p.chunks;
      }
  }
  const double work = p.groups * (seconds.forward + seconds.input + seconds.weight);
  for (RankId s = 0; s < p.stages; ++s) {
    EXPECT_EQ(stages[s].at, orders[s].size()) << "stage " << s << " waits for ever";
    timed.bubble = std::max(timed.bubble, stages[s].now - stages[s].begun - work);
    timed.makespan = std::max(timed.makespan, stages[s].now);
  }
  return timed;
}

std::vector<Pipeline> all_pipelines() {
  std::vector<Pipeline> list;
  for (const int stages : {1, 2, 3, 4, 8})
    for (const int groups : {1, 2, 3, 4, 8, 12, 16, 24})
      for (std::size_t order = 0; order < pipeline_order_names.size(); ++order)
        for (const int chunks : {1, 2, 3}) {
          const Pipeline p{static_cast<PipelineOrder>(order), static_cast<RankId>(stages), chunks, groups};
          if (check_pipeline(p).ok()) list.push_back(p);
        }
  return list;
}

std::string name_of(const Pipeline& p) {
  return std::string(pipeline_order_names[static_cast<std::size_t>(p.order)]) + " p" + std::to_string(p.stages) + " v" +
         std::to_string(p.chunks) + " m" + std::to_string(p.groups);
}

TEST(Pipeline, EveryGroupPassesEveryChunkOnceInTurn) {
  for (const Pipeline& p : all_pipelines())
    for (RankId s = 0; s < p.stages; ++s) {
      std::map<std::pair<Kind, int>, int> next;
      for (const StagePass& pass : stage_passes(p, s))
        EXPECT_EQ(pass.group, (next[{pass.kind, pass.chunk}]++)) << name_of(p);
      const bool splits = p.order == PipelineOrder::zb_h1 || p.order == PipelineOrder::zb_v;
      for (int c = 0; c < p.chunks; ++c) {
        EXPECT_EQ((next[{Kind::forward, c}]), p.groups) << name_of(p);
        EXPECT_EQ((next[{Kind::backward, c}]), splits ? 0 : p.groups) << name_of(p);
        EXPECT_EQ((next[{Kind::backward_input, c}]), splits ? p.groups : 0) << name_of(p);
        EXPECT_EQ((next[{Kind::backward_weight, c}]), splits ? p.groups : 0) << name_of(p);
      }
    }
}

TEST(Pipeline, PlacesAndTheirOwnersAgree) {
  for (const Pipeline& p : all_pipelines()) {
    for (int place = 0; place < p.places(); ++place) {
      const StageChunk owner = owner_of(p, place);
      EXPECT_EQ(place_of(p, owner.stage, owner.chunk), place) << name_of(p);
    }
    if (p.order == PipelineOrder::zb_v) {
      EXPECT_EQ(owner_of(p, 0).stage, owner_of(p, p.places() - 1).stage) << "both ends on one stage";
    }
  }
}

TEST(Pipeline, BubblesAndActivationsAreThoseOfTheTextbook) {
  const Seconds even, uneven{1, 1.25, 0.75};
  for (const Pipeline& p : all_pipelines()) {
    if (p.groups < 2 * p.stages) continue;
    const double stages = p.stages, chunks = p.chunks;
    for (const Seconds& t : {even, uneven}) {
      const Timed timed = run(p, t);
      const double most = *std::ranges::max_element(timed.held), all = t.forward + t.input + t.weight;
      switch (p.order) {
        case PipelineOrder::gpipe:
          EXPECT_NEAR(timed.bubble, (stages - 1) * all, 1e-9) << name_of(p);
          EXPECT_NEAR(most, p.groups, 1e-9) << name_of(p);
          break;
        case PipelineOrder::one_forward_one_backward:
          EXPECT_NEAR(timed.bubble, (stages - 1) * all, 1e-9) << name_of(p);
          EXPECT_NEAR(most, stages, 1e-9) << name_of(p);
          break;
        case PipelineOrder::interleaved:
          EXPECT_NEAR(timed.bubble, (stages - 1) * all / chunks, 1e-9) << name_of(p);
          EXPECT_NEAR(most, stages * (1 + (stages - 1) / (stages * chunks)), 1e-9) << name_of(p);
          break;
        case PipelineOrder::zb_h1:
          EXPECT_NEAR(timed.bubble, (stages - 1) * (t.forward + t.input - t.weight), 1e-9) << name_of(p);
          EXPECT_NEAR(most, stages, 1e-9) << name_of(p);
          break;
        case PipelineOrder::zb_v:
          if (t.input == t.weight) {
            EXPECT_NEAR(timed.bubble, 0, 1e-9) << name_of(p);
          }
          EXPECT_NEAR(most, stages, 1e-9) << name_of(p);
          break;
      }
    }
  }
}

/// As plans, whose messages have no room between two stages: nobody waits for ever.
TEST(Pipeline, StagesOfEveryOrderReachTheEndTogether) {
  for (const Pipeline& p : all_pipelines()) {
    if (p.stages == 1) continue;
    std::vector<StepPlan> world;
    for (RankId s = 0; s < p.stages; ++s) {
      world.push_back(test::toy_stage(p, s));
      EXPECT_TRUE(check(world.back()).empty()) << name_of(p);
    }
    const std::vector<Violation> found = check_world(world);
    EXPECT_TRUE(found.empty()) << name_of(p) << ": " << (found.empty() ? "" : found.front().message);
  }
}

/// A stage's passes take these seconds on a machine that computes 1 FLOP a second; messages take no time.
StepPlan timed_stage(const Pipeline& p, RankId stage, const Seconds& seconds, test::ToyMemory memory) {
  StepPlan plan = test::toy_stage(p, stage, stage_passes(p, stage), memory);
  plan.cyclic = false;
  const bool splits = p.order == PipelineOrder::zb_h1 || p.order == PipelineOrder::zb_v;
  for (Op& op : plan.ops) {
    if (op.kind == OpKind::forward) op.flop = seconds.forward / p.chunks;
    // Of a whole backward pass the weights' part is an op of its own too.
    if (op.kind == OpKind::backward) op.flop = (splits ? seconds.input : seconds.input + seconds.weight) / p.chunks;
    if (op.kind == OpKind::recompute) op.flop = splits ? seconds.weight / p.chunks : 0;
  }
  return plan;
}
HardwareProfile quick_machine() {
  HardwareProfile hw;
  hw.cores = 64;
  hw.compute_threads = 1;
  hw.gemm_flops_f32 = hw.gemm_flops_bf16 = 1;
  hw.memory_bytes_per_second = 1e18;
  hw.op_overhead_seconds = 0;
  return hw;
}

TEST(Pipeline, SimulatedStagesTakeTheTextbooksTime) {
  const Seconds uneven{1, 1.25, 0.75};
  for (const Pipeline& p : all_pipelines()) {
    std::vector<StepPlan> world;
    for (RankId s = 0; s < p.stages; ++s) world.push_back(timed_stage(p, s, uneven, test::ToyMemory::of_each_its_own));
    const WorldSimulation simulated = simulate_world(world, quick_machine());
    EXPECT_NEAR(simulated.end_seconds, run(p, uneven).makespan, 1e-6) << name_of(p);
    EXPECT_LE(simulated.bound_seconds, simulated.step_seconds * (1 + 1e-9)) << name_of(p);
  }
}

/// Two stages that work at the same time, on machines of their own, on one with a core for each, and on one core.
TEST(Pipeline, StagesOfAMachineShareItsCores) {
  const Pipeline p{PipelineOrder::gpipe, 2, 1, 8};
  std::vector<StepPlan> world;
  for (RankId s = 0; s < 2; ++s) world.push_back(timed_stage(p, s, {}, test::ToyMemory::of_each_its_own));
  HardwareProfile hw = quick_machine();
  const double apart = simulate_world(world, hw).end_seconds;
  EXPECT_NEAR(apart, 8 * 3 + 3, 1e-6);
  hw.ranks = 2;
  hw.cores = 2;
  EXPECT_NEAR(simulate_world(world, hw).end_seconds, apart, 1e-6);
  hw.cores = 1;
  const WorldSimulation crowded = simulate_world(world, hw);
  EXPECT_NEAR(crowded.end_seconds, 2 * 8 * 3, 1e-6) << "a core that is never idle";
  EXPECT_NEAR(crowded.bound_seconds, 2 * 8 * 3, 1e-6);
  // Two ranks more do as these do.
  hw.ranks = 4;
  hw.cores = 2;
  EXPECT_NEAR(simulate_world(world, hw).end_seconds, 2 * 8 * 3, 1e-6);
}

TEST(Pipeline, NumbersThatDoNotGoTogetherAreRefused) {
  EXPECT_FALSE(check_pipeline({PipelineOrder::interleaved, 4, 1, 8}).ok());
  EXPECT_FALSE(check_pipeline({PipelineOrder::interleaved, 4, 2, 6}).ok());
  EXPECT_FALSE(check_pipeline({PipelineOrder::zb_v, 4, 1, 8}).ok());
  EXPECT_FALSE(check_pipeline({PipelineOrder::zb_v, 4, 2, 7}).ok());
  EXPECT_FALSE(check_pipeline({PipelineOrder::zb_h1, 4, 2, 8}).ok());
  EXPECT_TRUE(check_pipeline({PipelineOrder::interleaved, 4, 3, 8}).ok());
}

}  // namespace
}  // namespace sluice
