// The loss of a model over windows of tokens. Training's evaluations and `sluice eval` share it, so that both give the
// same number, to the bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/schedule/schedule.h"
#include "src/train/data/batches.h"
#include "src/train/states/engine.h"

namespace sluice {

struct EvaluateResult {
  double loss = 0;            ///< nats per token; NaN where none counts
  std::uint64_t tokens = 0;   ///< that were predicted
  std::uint64_t windows = 0;  ///< sequences
};

/// One evaluation. The source of the plan's steps hands its calls on to load and collect. Losses of micro-batches are
/// added in the order of the windows: how many of them a pass has, on how many ranks, changes no bit.
class WindowLoss {
 public:
  /// `windows` and `workload` outlive it; at least one window. The schedule says which stage has losses.
  WindowLoss(const Windows& windows, const Workload& workload, const Schedule& schedule);

  /// As StepSource::load_tokens. Behind the last window rows are filled with it, and none of their targets counts.
  Status load(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst) const;
  /// As StepSource::step_end, with the losses of that rank.
  void collect(RankId rank, const StepParams& params, std::span<const double> losses);

  struct Stop {
    const std::atomic<bool>* requested = nullptr;  ///< may be null
    double patience_seconds = 0;                   ///< that an evaluation may still take once it is
  };
  using Watch = std::function<void(double fraction, double loss)>;
  /// Runs these plans, which make losses, as often as it takes; nothing runs before and after. `watch`, which may
  /// be empty, hears the loss so far after every pass. All processes of the engine's world call it, and get the same.
  /// Errors: cancelled.
  Result<EvaluateResult> run(Engine& engine, StepPlan StagePlans::*plan, const Stop& stop, const Watch& watch);

 private:
  Status passes(Engine& engine, const Stop& stop, const Watch& watch, EvaluateResult& result);
  Status share(World& world, std::uint64_t pass, bool& stops);
  Result<std::uint64_t> count_targets(std::uint64_t first, std::uint64_t last);
  std::uint64_t micro_batch_of(RankId rank, std::uint64_t pass) const;

  const Windows& windows_;
  const Workload& work_;
  RankRange heads_;  ///< the ranks that make losses
  std::uint64_t rows_, sequence_, per_rank_, per_pass_, slices_;
  std::vector<double> losses_;  ///< [micro-batch, slice], written on the optimizer lanes before the pass is complete
  std::vector<std::int32_t> scratch_;  ///< planes of one row
};

}  // namespace sluice
