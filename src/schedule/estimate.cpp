#include "src/schedule/estimate.h"

#include <algorithm>

#include "offload/parallel.h"
#include "src/schedule/build.h"
#include "src/schedule/stages.h"

namespace sluice {

StepEstimate Estimator::simulated(const Workload& workload, const Schedule& schedule) const {
  std::vector<StepPlan> plans(workload.stages());
  parallel_for(plans.size(), [&](std::size_t s) {
    plans[s] = build_sketch(workload.main_kind(), at_stage(workload, static_cast<RankId>(s)), schedule);
  });
  std::size_t ops = 0;
  for (const StepPlan& plan : plans) ops += plan.ops.size();
  if (plans.size() > 1) {
    const WorldSimulation sim = simulate_world(plans, hw_);
    ResourceSeconds most{};
    for (const Simulation& member : sim.members)
      std::ranges::transform(most, member.resource_seconds, most.begin(),
                             [](double a, double b) { return std::max(a, b); });
    return {sim.step_seconds, sim.bound_seconds, ops, most};
  }
  const Simulation sim = simulate(plans.front(), hw_);
  return {sim.step_seconds, sim.bound_seconds, ops, sim.resource_seconds};
}

StepEstimate Estimator::estimate(const Schedule& schedule) const {
  return is_exact() ? exact(schedule) : of_sample(sample_.of(schedule));
}

StepEstimate Estimator::of_sample(const Schedule& sampled) const {
  const Sample::Lengths lengths = sample_.lengths(sampled);
  StepEstimate few = simulated(sample_.workload(lengths.few), sampled), more = few;
  if (lengths.more > lengths.few) more = simulated(sample_.workload(lengths.more), sampled);
  const auto whole = [&](double a, double b) { return sample_.whole_seconds(a, b, lengths); };
  StepEstimate e{whole(few.step_seconds, more.step_seconds), whole(few.bound_seconds, more.bound_seconds), few.ops};
  std::ranges::transform(few.resource_seconds, more.resource_seconds, e.resource_seconds.begin(), whole);
  return e;
}

StepEstimate Estimator::exact(const Schedule& schedule) const { return simulated(work_, schedule); }

}  // namespace sluice
