// How long a schedule's step takes, found quickly enough to compare hundreds of schedules.
#pragma once

#include <optional>

#include "sluice/profile.h"
#include "src/schedule/schedule.h"

namespace sluice {

struct StepEstimate {
  double step_seconds = 0, bound_seconds = 0;
  std::size_t ops = 0;  ///< that were simulated
};

/// Simulates a step. Layers of a transformer are alike: where a plan has very many ops, a model of fewer layers stands
/// for the whole, each of its layers with the choices of the layer that lies as far from the first, and its time is
/// taken in proportion to the parameters. Comparisons between schedules hold to about a percent then; `exact` predicts
/// with all layers.
class Estimator {
 public:
  /// Both outlive it.
  Estimator(const Workload& workload, const HardwareProfile& hw);
  /// On any number of threads.
  StepEstimate estimate(const Schedule& schedule) const;
  StepEstimate exact(const Schedule& schedule) const;
  bool is_exact() const { return sample_.units.empty(); }

 private:
  Schedule sampled(const Schedule& schedule) const;
  StepEstimate simulated(const Workload& workload, const Schedule& schedule) const;

  const Workload& work_;
  const HardwareProfile& hw_;
  ModelSpec sample_;  ///< empty: the model itself
  std::optional<SplitModel> sample_split_;
  Workload sample_work_;
  double scale_ = 1;  ///< parameters of the model over those of the sample
};

}  // namespace sluice
