// What is known of a step when it is over.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/run/moved_bytes.h"

namespace sluice {

/// nats per token
struct SetLoss {
  std::string set;
  double loss = 0;
  bool operator==(const SetLoss&) const = default;
};
/// The one that goes by no name: of what is held out, else of the only set; none where there are several others.
std::optional<double> eval_loss_of(const std::vector<SetLoss>& losses);

/// One line of the metrics file.
struct StepRecord {
  std::int64_t step = 0;
  std::string run;  ///< run_name; empty: nothing of the run is kept
  double loss = 0, grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;  ///< seen so far, this step included
  double step_seconds = 0, tokens_per_second = 0, mfu = 0, bound_seconds = 0, predicted_seconds = 0, efficiency = 0;
  std::uint64_t device_peak_bytes = 0, host_peak_bytes = 0, nvme_peak_bytes = 0;
  MovedBytes moved;
  std::uint64_t rss_bytes = 0;
  std::int64_t saved_step = 0;  ///< whose states the step wrote to a checkpoint beside its work; 0: none
  bool repaired = false;        ///< it clipped where that was not expected, and was updated, or made, again
  bool skipped = false;         ///< loss or gradient was not finite: the states are those of the step before
  std::optional<std::uint64_t> state_hash;
  std::vector<SetLoss> eval;  ///< of each set, where the step was evaluated
};
std::string to_json_line(const StepRecord& record);

}  // namespace sluice
