// How long a schedule's step takes, found quickly enough to compare hundreds of schedules.
#pragma once

#include <algorithm>

#include "offload/plan/simulate.h"
#include "sluice/profile.h"
#include "src/schedule/sample.h"

namespace sluice {

struct StepEstimate {
  double step_seconds = 0, bound_seconds = 0;
  std::size_t ops = 0;                 ///< that were simulated
  ResourceSeconds resource_seconds{};  ///< work / rate of each, of the rank that has most of it

  Resource bottleneck() const {
    return static_cast<Resource>(std::ranges::max_element(resource_seconds) - resource_seconds.begin());
  }
};

/// Simulates a step. Where a plan has very many ops, a sample of its layers and micro-batches stands for the whole.
/// Comparisons between schedules hold to about a percent then; `exact` predicts with all of them.
class Estimator {
 public:
  /// Both outlive it.
  Estimator(const Workload& workload, const HardwareProfile& hw, const PipelineChoice& pipeline = {})
      : work_(workload), hw_(hw), sample_(workload, pipeline) {}
  /// On any number of threads.
  StepEstimate estimate(const Schedule& schedule) const;
  StepEstimate exact(const Schedule& schedule) const;
  /// Of a schedule of the sample.
  StepEstimate of_sample(const Schedule& sampled) const;
  bool is_exact() const { return sample_.is_whole(); }
  const Sample& sample() const { return sample_; }

 private:
  StepEstimate simulated(const Workload& workload, const Schedule& schedule) const;

  const Workload& work_;
  const HardwareProfile& hw_;
  Sample sample_;
};

}  // namespace sluice
