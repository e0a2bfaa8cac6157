// Stages side by side as executors: what one sends is what the other works on, in any order of passes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "offload/run/rank_team.h"
#include "src/comm/in_process.h"
#include "tests/plan/toy_pipeline.h"

namespace sluice {
namespace {

using namespace test;

constexpr int activation_numel = static_cast<int>(toy_activation_bytes / sizeof(float));

/// What stages compute: y of x, and the gradient of x, of no use but to tell stages, steps and micro-batches apart.
float forward_of(RankId stage, float x) { return 2 * x + static_cast<float>(stage); }
float backward_of(RankId stage, float x, float y, float dy) { return dy + x + 3 * y + static_cast<float>(stage); }
float input(std::uint64_t step, int micro_batch, int i) {
  return static_cast<float>(step) * 8 + static_cast<float>(micro_batch) + static_cast<float>(i % 16) / 16;
}

class Stage final : public ComputeBackend {
 public:
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override {
    const auto find = [&](Role role) -> float* {
      for (const Operand& o : operands)
        if (o.role == role) return reinterpret_cast<float*>(o.data);
      return nullptr;
    };
    if (op.kind == OpKind::recompute) return success();  // the gradient of weights, which nobody looks at
    const RankId stage = plan.topology.rank();
    const float *x = find(Role::x_in), *saved = find(Role::saved), *dy = find(Role::d_out);
    float *y = find(Role::x_out), *dx = find(Role::d_in);
    for (int i = 0; i < activation_numel; ++i) {
      const float in = x != nullptr ? x[i] : input(params.step, op.micro_batch, i);
      if (op.kind == OpKind::forward)
        y[i] = forward_of(stage, in);
      else
        dx[i] = backward_of(stage, in, saved[i], dy != nullptr ? dy[i] : 1);
    }
    return success();
  }
};

float expected(RankId stages, std::uint64_t step, int micro_batch, int i) {
  std::vector<float> x{input(step, micro_batch, i)};
  for (RankId s = 0; s < stages; ++s) x.push_back(forward_of(s, x.back()));
  float d = 1;
  for (RankId s = stages; s-- > 0;) d = backward_of(s, x[s], x[s + 1u], d);
  return d;
}

struct Pipeline {
  Pipeline(const std::vector<StepPlan>& plans, World& world) {
    std::vector<std::unique_ptr<Executor>> executors;
    for (const StepPlan& plan : plans) {
      std::vector<ArenaSpec> specs;
      for (const Arena& arena : plan.arenas)
        if (arena.arena_bytes > 0) specs.push_back({arena.tier, arena.arena_bytes});
      auto made = Memory::create(specs, device);
      EXPECT_TRUE(made.ok()) << made.error().message;
      memory.push_back(std::make_unique<Memory>(std::move(made).value()));
      ExecutorParts parts;
      parts.memory = memory.back().get();
      parts.backend = &backend;
      parts.communicator = &world.communicator(plan.topology.rank());
      executors.push_back(std::make_unique<Executor>(std::move(parts), ExecutorOptions{}));
    }
    team = std::make_unique<RankTeam>(std::move(executors));
  }
  HostDevice device;
  Stage backend;
  std::vector<std::unique_ptr<Memory>> memory;
  std::unique_ptr<RankTeam> team;
};

TEST(Stages, WorkOnWhatTheirNeighboursSend) {
  constexpr int micro_batches = 4, steps = 5;
  for (const RankId stages : {2, 3, 5})
    for (const PipelineOrder order :
         {PipelineOrder::gpipe, PipelineOrder::one_forward_one_backward, PipelineOrder::zb_h1}) {
      const std::vector<StepPlan> plans = toy_pipeline({order, stages, 1, micro_batches});
      InProcessWorld world(stages);
      Pipeline pipeline(plans, world);
      std::vector<const StepPlan*> bound;
      for (const StepPlan& plan : plans) bound.push_back(&plan);
      ASSERT_TRUE(pipeline.team->begin(bound).ok());
      for (std::uint64_t step = 1; step <= steps; ++step) {
        StepParams params;
        params.step = step;
        ASSERT_TRUE(pipeline.team->release(params).ok());
        const Status done = pipeline.team->wait(step - 1);
        ASSERT_TRUE(done.ok()) << done.error().message;
        for (int mb = 0; mb < micro_batches; ++mb) {
          const Buffer& result = plans.front().buffers[static_cast<std::size_t>(mb)];
          const auto* const got = reinterpret_cast<const float*>(pipeline.memory.front()->at(Tier::host, result.offset));
          for (int i = 0; i < activation_numel; ++i)
            ASSERT_EQ(got[i], expected(stages, step, mb, i)) << stages << " " << mb;
        }
        std::uint64_t arrived = pipeline.team->moved(step - 1).message;
        EXPECT_EQ(arrived, 2u * (stages - 1u) * micro_batches * toy_activation_bytes);
      }
      EXPECT_TRUE(pipeline.team->end().ok());
    }
}

/// One that fails takes those along that wait for it, at either end.
TEST(Stages, EndTogether) {
  constexpr int micro_batches = 3;
  const std::vector<StepPlan> plans =
      toy_pipeline({PipelineOrder::one_forward_one_backward, 3, 1, micro_batches});
  InProcessWorld world(3);
  Pipeline pipeline(plans, world);
  std::vector<const StepPlan*> bound;
  for (const StepPlan& plan : plans) bound.push_back(&plan);
  ASSERT_TRUE(pipeline.team->begin(bound).ok());
  StepParams params;
  params.step = 1;
  ASSERT_TRUE(pipeline.team->rank(0).release(params).ok());
  ASSERT_TRUE(pipeline.team->rank(2).release(params).ok());
  pipeline.team->rank(1).stop({ErrorCode::fault, "the middle is gone"});
  for (const RankId r : {0, 2}) {
    const Status status = pipeline.team->rank(r).wait(0);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("the middle is gone"), std::string::npos) << status.error().message;
  }
  EXPECT_FALSE(pipeline.team->end().ok());
}

}  // namespace
}  // namespace sluice
