// The training loop: releases steps to the engine, writes metrics, evaluates, and leaves the trained model behind.
//
// With a run directory a run goes on where it was cut short. Where it is durable, that is the last committed step,
// whatever happened; else the step at which it was asked to stop.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/files/publish.h"
#include "io/tokens/token_file.h"
#include "src/comm/world.h"
#include "src/train/data/batches.h"
#include "src/train/data/eval_sets.h"
#include "src/train/inference/window_loss.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/step_journal.h"
#include "src/train/run/step_record.h"
#include "src/train/run/together.h"
#include "src/train/states/engine.h"
#include "src/train/states/restore.h"

namespace sluice {

/// Told how a run goes, on the thread that called run().
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void note(const std::string&) {}
  virtual void progress(const std::string&, double) {}  ///< fraction of what takes long before the first step
  virtual void step(const StepRecord&) {}
  virtual void evaluated(std::int64_t, const SetLoss&) {}
};

struct TrainResult {
  std::int64_t steps = 0;     ///< done, those of earlier processes included
  double loss = 0;            ///< of the last step
  std::vector<SetLoss> eval;  ///< after the last step, of each set; of complete runs
  std::optional<double> eval_loss() const { return eval_loss_of(eval); }
  bool interrupted = false;
  bool resumable = false;                   ///< interrupted, and the same command goes on after `steps`
  std::int64_t timed_steps = 0;             ///< of this process
  double seconds = 0;                       ///< of those, without evaluations
  std::uint64_t nvme_write_bytes = 0;       ///< of those
  std::optional<std::uint64_t> state_hash;  ///< of complete runs with a directory
};
/// {name: loss}
nlohmann::ordered_json to_json(const std::vector<SetLoss>& losses);
/// What result.json tells of a complete run: "eval_loss" is null where no set goes by no name.
nlohmann::ordered_json to_json(const TrainResult& result);

class Trainer final : public StepSource, public CommitSink {
 public:
  /// Opens the data, reserves memory and drive, and fills the states: new, or from where the directory's run stopped.
  /// Nothing has run yet. `directory` and `stop`, which ends it early, may be null; else they outlive the trainer, and
  /// so does `world`, null where all ranks are this process's. All processes of a world call everything here alike, and
  /// get the same errors; who leads writes to the directory, the others look at it.
  static Result<std::unique_ptr<Trainer>> create(const Prepared& run, TrainObserver& observer,
                                                 RunDirectory* directory = nullptr,
                                                 const std::atomic<bool>* stop = nullptr, World* world = nullptr);

  /// All steps that are left, or until `stop` becomes true: then the steps that were released are finished, or given up
  /// where that would take long and the run is durable.
  Result<TrainResult> run(const std::atomic<bool>& stop);
  /// The loss on every set that there is.
  Result<std::vector<SetLoss>> evaluate();
  Engine& engine() { return *engine_; }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> losses) override;
  void step_not_finite(RankId rank, const StepParams& params) override;
  Status commit(RankId rank, const StepParams& params, std::uint8_t parity) override;

 private:
  using Clock = std::chrono::steady_clock;
  Trainer(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
          World* world);

  Status compare_inputs();

  // where the run stands (trainer_state.cpp)
  Status open_tokens();
  Status open_state();
  Status continue_run();
  Status open_engine(bool swap_exists);
  Status check_room() const;
  RestoreListener listener();
  States::Watch watch(const std::string& what);
  Status pass_on(const std::string& what, double fraction);  ///< to the observer; cancelled once stop_ is true
  Status begin_run();
  Status commit_initial(std::uint64_t step, const std::vector<StepResult>& results);
  Status keep_beside();
  Status fill_new();
  Status continue_durable();
  Status continue_snapshot();
  Status remove_swap_files(RankId from) const;
  Status lay_out_anew();
  Result<std::uint64_t> check_snapshot();
  void remember_skipped(std::uint64_t step, const std::vector<StepResult>& results);
  bool has_other_ranks() const { return !is_laid_out_alike(directory_->run()->config, run_.config); }
  RunDescription describe() const;
  Status check_same(const RunDescription& run) const;
  Status open_metrics();
  Status complete_metrics(TrainResult& result);
  std::optional<StepResult> find_result(std::int64_t step) const;
  Status save_state();
  Status settle();
  Error kept(const Error& reason);
  Status complete(TrainResult& result);

  // a run that goes on otherwise (trainer_changes.cpp)
  Status check_not_done(std::uint64_t step) const;
  Error in_order_of_drives(const Error& error) const;
  void tell_changes() const;
  const RunConfig& config_of(std::int64_t step) const;

  // steps (trainer.cpp)
  StepParams step_params(std::int64_t step, double targets) const;
  Status release(std::int64_t step);
  Result<StepRecord> collect(std::int64_t step);
  StepRecord restored(const StepResult& result) const;
  void fill_rates(StepRecord& record) const;
  Status begin_training(std::int64_t first);
  Status end_training();  ///< drains and applies what is pending
  Status drain();
  Status interlude(std::int64_t step, StepRecord& record);
  bool ends_alone(std::int64_t step) const;
  Status write(const StepRecord& record);
  Status steps(const std::atomic<bool>& stop, TrainResult& result);
  Result<StepRecord> train_step(std::int64_t step, bool stops, TrainResult& result);
  Result<StepRecord> pass_over(std::int64_t step);
  Status skip_failed(const Error& reason);
  Result<TrainResult> interrupted(TrainResult result, const std::string& how);
  void compare_with_prediction() const;
  Status write_trace_file();
  double batch_tokens() const;
  Status read_sample(std::uint64_t sample, const BatchRow& row) const;
  Result<double> count_targets(std::uint64_t step);
  double mean_loss(std::uint64_t step) const;

  const Prepared& run_;
  TrainObserver& observer_;
  RunDirectory* directory_;
  const std::atomic<bool>* stop_;
  std::unique_ptr<World> own_world_;  ///< where all ranks are this process's
  World& world_;
  Together together_;
  TokenFile tokens_;
  std::uint64_t data_hash_ = 0;
  Batches batches_;
  std::vector<EvalSet> eval_sets_;
  std::string metrics_path_;
  LineWriter metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepJournal> journal_;                     ///< of durable runs
  std::array<StepResult, CommitLog::results_max> recent_{};  ///< of others: ring by step; step 0 is none
  std::atomic<WindowLoss*> evaluation_{nullptr};             ///< that runs, in place of steps

  struct Ended {
    ControlBlock control;
    Clock::time_point at;
  };
  std::array<Ended, 8> ended_{};       ///< ring by step, written on the optimizer lane before the iteration is complete
  std::array<double, 8> targets_{};    ///< likewise, written before the step is released: tokens that count in its loss
  std::vector<std::int32_t> scratch_;  ///< planes of one row
  Clock::time_point previous_end_, previous_report_;
  std::int64_t done_ = 0;     ///< the last step that is behind us
  std::int64_t written_ = 0;  ///< last step that has a line
  std::int64_t first_ = 1;    ///< step of iteration 0 since begin
  std::int64_t released_ = 0;
  std::int64_t collected_ = 0;
  std::int64_t saved_ = -1;  ///< the step of the snapshot that there is
  bool training_ = false;    ///< the training plan is bound
  bool pending_ = false;     ///< the last step's update has not been applied
  bool broken_ = false;      ///< steps could not be ended: the states are of none
  std::atomic<std::int64_t> failed_step_{0};
  std::set<std::int64_t> skip_;               ///< steps that were not finite
  std::optional<std::vector<SetLoss>> eval_;  ///< after the last step
  std::vector<StepRecord> steady_;  ///< steps that begin in the tail of the one before, as the prediction has it
  Timeline timeline_;
};

}  // namespace sluice
