#include "src/schedule/estimate.h"

#include <algorithm>

#include "offload/parallel.h"
#include "offload/plan/simulate.h"
#include "src/schedule/build.h"
#include "src/schedule/stages.h"

namespace sluice {
namespace {

/// A plan of so many ops is simulated in about a tenth of a second.
constexpr double ops_max = 16000;
constexpr std::int64_t layers_min = 6;

/// Of a streamed step with tiles of the usual size, roughly.
double expected_ops(const Workload& w) {
  double shards = 0;
  for (std::size_t u = 0; u < w.model->units.size(); ++u)
    shards += static_cast<double>(w.shard_numel(static_cast<UnitId>(u)));
  const double tiles = shards / static_cast<double>(tile_for(w, 1u << 18, 2048));
  const double passes = static_cast<double>(w.model->units.size()) * w.micro_batches;
  return 6 * passes + 20 * tiles;
}

}  // namespace

Estimator::Estimator(const Workload& workload, const HardwareProfile& hw) : work_(workload), hw_(hw) {
  const double ops = expected_ops(workload);
  const ModelConfig& config = workload.model->config;
  const auto layers =
      std::max(layers_min, static_cast<std::int64_t>(static_cast<double>(config.layers) * ops_max / ops));
  // A pipeline's bubble is a matter of its stages, which fewer layers would cut otherwise.
  if (layers >= config.layers || workload.stages() > 1) return;
  ModelConfig fewer = workload.split == nullptr ? config : workload.split->whole().config;
  fewer.layers = layers;
  sample_ = build_model(fewer);
  sample_work_ = workload;
  sample_work_.model = &sample_;
  if (workload.split != nullptr) {
    sample_work_.split = &sample_split_.emplace(sample_, workload.split->ranks());
    sample_work_.model = &sample_split_->part();
  }
  scale_ = static_cast<double>(workload.model->parameters) / static_cast<double>(sample_work_.model->parameters);
}

/// Units are embedding, two for each layer, head.
Schedule Estimator::sampled(const Schedule& schedule) const {
  Schedule s = schedule;
  const auto all = static_cast<std::size_t>(work_.model->config.layers);
  const auto few = static_cast<std::size_t>(sample_.config.layers);
  s.units.clear();
  s.units.push_back(schedule.units.front());
  for (std::size_t layer = 0; layer < few; ++layer) {
    const std::size_t from = (2 * layer + 1) * all / (2 * few);
    s.units.push_back(schedule.units[1 + 2 * from]);
    s.units.push_back(schedule.units[2 + 2 * from]);
  }
  s.units.push_back(schedule.units.back());
  return s;
}

StepEstimate Estimator::simulated(const Workload& workload, const Schedule& schedule) const {
  std::vector<StepPlan> plans(workload.stages());
  parallel_for(plans.size(), [&](std::size_t s) {
    plans[s] = build_sketch(workload.main_kind(), at_stage(workload, static_cast<RankId>(s)), schedule);
  });
  std::size_t ops = 0;
  for (const StepPlan& plan : plans) ops += plan.ops.size();
  if (plans.size() > 1) {
    const WorldSimulation sim = simulate_world(plans, hw_);
    return {sim.step_seconds, sim.bound_seconds, ops};
  }
  const Simulation sim = simulate(plans.front(), hw_);
  return {sim.step_seconds, sim.bound_seconds, ops};
}

StepEstimate Estimator::estimate(const Schedule& schedule) const {
  if (is_exact()) return exact(schedule);
  StepEstimate e = simulated(sample_work_, sampled(schedule));
  e.step_seconds *= scale_;
  e.bound_seconds *= scale_;
  return e;
}

StepEstimate Estimator::exact(const Schedule& schedule) const { return simulated(work_, schedule); }

}  // namespace sluice
