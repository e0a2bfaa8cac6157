// Nothing on the hot path allocates: calls of the allocators are counted while iterations run.
#include <gtest/gtest.h>

#include <array>

#include "tests/run/count_allocations.h"
#include "tests/run/rig.h"
#include "tests/run/toy_plan.h"

namespace sluice::test {
namespace {

/// Does no more than the executor: what is counted is the executor's.
class QuietParts final : public ComputeBackend, public StepSource {
 public:
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override {
    mix(0, static_cast<OpId>(&op - plan.ops.data()), params, operands);
    return success();
  }
  Status load_tokens(RankId rank, std::int32_t mb, const StepParams& params, std::span<std::int32_t> dst) override {
    fill_tokens(rank, mb, params, dst);
    return success();
  }
  Status step_end(RankId, const StepParams&, const ControlBlock&, std::span<const double>) override {
    return success();
  }
};

TEST(Allocation, NoneWhileIterationsRun) {
  for (const RankId ranks : {1, 2})
    for (const IoBackendKind backend : {IoBackendKind::automatic, IoBackendKind::threads}) {
      const ToyTraining toy = toy_training(ranks, 3, 2);
      RigOptions options;
      options.queue.backend = backend;
      Rig rig(toy.plans, toy.units, options);
      ASSERT_TRUE(rig.initialise().ok());
      QuietParts quiet;
      InProcessWorld world(ranks);
      RankTeam team =
          rig.other_team(world, quiet, quiet, nullptr, toy.units, {.optimizer_threads = 2, .record_timeline = true});
      ASSERT_TRUE(rig.begin(team).ok());
      const auto step = [&](std::uint64_t i) {
        const bool released = team.release(Rig::params(i)).ok();
        return released && team.wait(i).ok();
      };
      for (std::uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(step(i));
      bool ran = true;
      const std::uint64_t before = allocations();
      for (std::uint64_t i = 2; i < 12; ++i) ran = step(i) && ran;
      const std::uint64_t after = allocations();
      EXPECT_TRUE(ran);
      EXPECT_EQ(after - before, 0u) << ranks << " ranks";
      EXPECT_TRUE(team.end().ok());
    }
}

TEST(Allocation, TheCounterCounts) {
  const std::uint64_t before = allocations();
  const auto made = std::make_unique<std::array<int, 100>>();
  EXPECT_GT(allocations(), before);
  EXPECT_NE(made, nullptr);
}

}  // namespace
}  // namespace sluice::test
