// Small plans for testing the executor: random ones over every tier, and one shaped like a training step.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/run/executor.h"
#include "sluice/plan.h"

namespace sluice::test {

struct RandomPlanOptions {
  std::uint64_t seed = 1;
  RankId ranks = 1;
  int ops = 60;  ///< about
  bool cyclic = true;
};
/// Compute, copies, drive and collectives in random order over random buffers, finished and checked. The durable
/// buffers are rewritten and committed once per iteration. One plan for each rank.
std::vector<StepPlan> random_plans(const RandomPlanOptions& options);

struct ToyTraining {
  std::vector<StepPlan> plans;                    ///< [rank]
  std::vector<std::vector<OptimizerUnit>> units;  ///< [rank][unit]
  const StepPlan& plan() const { return plans.front(); }
};
/// Units of f32 parameters and moments on the drive (two slots), updated ahead of the forward pass in tiles, in turns
/// on the CPU and on the device, gradient in host memory, norms, control, step end, commit.
ToyTraining toy_training(RankId ranks, int units, int micro_batches);

}  // namespace sluice::test
