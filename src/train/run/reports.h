// What a run tells of its steps: lines of metrics without gaps, rates, and how all that compares with the prediction.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/files/publish.h"
#include "offload/state/commit_log.h"
#include "src/train/request/prepare.h"
#include "src/train/run/observer.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/together.h"

namespace sluice {

/// Of all ranks.
inline double batch_tokens(const Workload& w) {
  return static_cast<double>(w.shape.tokens()) * w.micro_batches * w.data_ranks();
}

class StepReports {
 public:
  /// All outlive it; `directory` may be null.
  StepReports(const Prepared& run, TrainObserver& observer, World& world, const RunDirectory* directory,
              Together& together);

  const std::string& path() const { return path_; }  ///< of the metrics; empty: none are kept
  /// An empty file for a new run.
  Status begin();
  /// Where begin() was not called: the file of a run that goes on behind step `done`, with the lines that are missing
  /// from what is still known of them.
  Status go_on(std::int64_t done, const std::function<std::optional<StepResult>(std::int64_t)>& known);
  std::int64_t written() const { return written_; }  ///< the last step that has a line

  /// What follows from step and duration. `ahead`: the step was one of StagePlans::ahead.
  void fill_rates(StepRecord& record, bool ahead = false) const;
  /// The line of a step that an earlier process has run: what its commit tells, and what every step of the plan has.
  StepRecord restored(const StepResult& result) const;
  /// A step's line, once; to the observer too.
  Status write(const StepRecord& record);
  Status sync() { return metrics_.is_open() ? metrics_.sync() : success(); }

  /// A step of this process that began in the tail of the one before, as the prediction has it.
  void add_steady(const StepRecord& record);
  /// At the end: says where the machine was slower than it was measured, or where the profile is wrong. `timeline` is
  /// of the last step, or empty.
  void compare_with_prediction(const Timeline& timeline, bool is_disturbed) const;

 private:
  const RunConfig& config_of(std::int64_t step) const;

  const Prepared& run_;
  TrainObserver& observer_;
  World& world_;
  const RunDirectory* directory_;
  Together& together_;
  std::string path_;
  LineWriter metrics_;
  std::int64_t written_ = 0;
  std::vector<StepRecord> steady_;
};

}  // namespace sluice
