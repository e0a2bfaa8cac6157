// The training loop: releases steps to the engine, writes metrics, evaluates, and leaves the trained model behind.
//
// With a run directory a run goes on where it was cut short. Where it is durable, that is the last committed step,
// whatever happened; else the step at which it was asked to stop.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/tokens/token_file.h"
#include "src/comm/world.h"
#include "src/train/data/batches.h"
#include "src/train/data/eval_sets.h"
#include "src/train/inference/window_loss.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/clip_forecast.h"
#include "src/train/run/kept_timeline.h"
#include "src/train/run/lifecycle.h"
#include "src/train/run/observer.h"
#include "src/train/run/reports.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/together.h"

namespace sluice {

struct TrainResult {
  std::int64_t steps = 0;     ///< done, those of earlier processes included
  double loss = 0;            ///< of the last step
  std::vector<SetLoss> eval;  ///< after the last step, of each set; of complete runs
  std::optional<double> eval_loss() const { return eval_loss_of(eval); }
  bool interrupted = false;
  bool resumable = false;                   ///< interrupted, and the same command goes on after `steps`
  bool phase_ended = false;                 ///< the next phase (SequencePhase) goes on after `steps`, with other plans
  std::int64_t timed_steps = 0;             ///< of this process
  double seconds = 0;                       ///< of those, without evaluations
  std::uint64_t nvme_write_bytes = 0;       ///< of those
  std::int64_t repaired = 0;                ///< of those, that clipped where that was not expected
  std::uint64_t saves = 0;                  ///< checkpoints that --save-every has written meanwhile
  std::optional<std::uint64_t> state_hash;  ///< of complete runs with a directory
  /// Of this process's earlier phases.
  void add(const TrainResult& earlier);
};
/// {name: loss}
nlohmann::ordered_json to_json(const std::vector<SetLoss>& losses);
/// What result.json tells of a complete run: "eval_loss" is null where no set goes by no name.
nlohmann::ordered_json to_json(const TrainResult& result);

/// A stop waits so long for the steps that are under way, where they can be given up.
constexpr double stop_patience_seconds = 10;

class Trainer final : public StepSource {
 public:
  /// Opens the data, reserves memory and drive, and fills the states: new, or from where the directory's run stopped.
  /// Nothing has run yet. `directory` and `stop`, which ends it early, may be null; else they outlive the trainer, and
  /// so does `world`, null where all ranks are this process's. All processes of a world call everything here alike, and
  /// get the same errors; who leads writes to the directory, the others look at it.
  static Result<std::unique_ptr<Trainer>> create(const Prepared& run, TrainObserver& observer,
                                                 RunDirectory* directory = nullptr,
                                                 const std::atomic<bool>* stop = nullptr, World* world = nullptr);

  /// All steps that are left of the phase, and what ends the run behind the last one; or until `stop` becomes true:
  /// then the steps that were released are finished, or given up where that would take long and the run is durable.
  Result<TrainResult> run(const std::atomic<bool>& stop);
  /// The loss on every set that there is.
  Result<std::vector<SetLoss>> evaluate();
  Engine& engine() { return life_.engine(); }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> losses) override;
  void step_not_finite(RankId rank, const StepParams& params) override;
  void step_mispredicted(RankId rank, const StepParams& params, const ControlBlock& control) override;

 private:
  using Clock = std::chrono::steady_clock;
  Trainer(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
          World* world);

  // the run as a whole (trainer_run.cpp)
  Status open_tokens();
  Status check_lengths();
  Status compare_inputs();
  Status complete_metrics(TrainResult& result);
  Status write_timelines();
  Result<TrainResult> interrupted(TrainResult result, const std::string& how);
  Result<TrainResult> end_phase(TrainResult result);
  Status settle();
  Error kept(const Error& reason);
  Status complete(TrainResult& result);

  // steps (trainer.cpp)
  Status read_sample(std::uint64_t sample, const BatchRow& row) const;
  Result<double> count_targets(std::uint64_t step);
  double mean_loss(std::uint64_t step) const;
  StepParams step_params(std::int64_t step, double targets) const;
  Status release(std::int64_t step);
  StepRecord record_of(std::int64_t step, Clock::time_point end, const MovedBytes& moved, bool repaired);
  Result<StepRecord> collect(std::int64_t step);
  Status flush(std::int64_t step, StepPlan StagePlans::*plan, std::optional<double> clip_factor = {});
  Result<StepRecord> update_again(std::int64_t step);
  Status begin_training(std::int64_t first);
  Status end_training();  ///< drains and applies what is pending
  Status drain();
  bool saves(std::int64_t step) const;
  bool saves_beside(std::int64_t step) const;
  void begin_save(StepParams& params);
  Status finish_save(StepRecord& record);
  Status look_for_request();
  Status save(std::int64_t step);
  bool drains_after(std::int64_t step) const;
  bool ends_alone(std::int64_t step) const;
  Status interlude(std::int64_t step, StepRecord& record);
  Result<StepRecord> run_step(std::int64_t step, bool stops);
  Result<StepRecord> train_step(std::int64_t step, bool stops, TrainResult& result);
  Result<StepRecord> pass_over(std::int64_t step);
  /// Of what a step computes: with committed states a run goes on.
  static bool is_of_step(const Error& e) {
    return e.code == ErrorCode::not_finite || e.code == ErrorCode::mispredicted;
  }
  bool clips(double grad_norm) const;
  bool leaves_updates() const;
  bool wants_to_wait() const;
  bool is_other_order() const { return waits_ != run_.search.schedule.update_ahead; }  ///< than the main plan's
  void tell_order();
  Status go_back(std::int64_t committed, bool keeps_gradients = false);
  Status skip_failed(const Error& reason);
  Status repair();
  Status recover(const Error& reason);
  Status steps(const std::atomic<bool>& stop, TrainResult& result);

  const Prepared& run_;
  const SequencePhase phase_;
  const std::uint64_t samples_before_;  ///< of the phase
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
  StepReports reports_;
  Lifecycle life_;
  std::atomic<WindowLoss*> evaluation_{nullptr};  ///< that runs, in place of steps

  struct Ended {
    ControlBlock control;
    Clock::time_point at;
  };
  std::array<Ended, 8> ended_{};       ///< ring by step, written on the optimizer lane before the iteration is complete
  std::array<double, 8> targets_{};    ///< likewise, written before the step is released: tokens that count in its loss
  std::vector<std::int32_t> scratch_;  ///< planes of one row
  Clock::time_point previous_end_, previous_report_;
  std::int64_t done_ = 0;                     ///< the last step that is behind us
  std::int64_t first_ = 1;                    ///< step of iteration 0 since begin
  std::vector<std::uint8_t> first_parities_;  ///< which slot was current then, by rank of here, where steps are durable
  std::int64_t released_ = 0;
  std::int64_t collected_ = 0;
  bool training_ = false;  ///< the training plan is bound
  bool waits_ = false;     ///< its updates wait for the norm, ahead of the next forward pass
  bool pending_ = false;   ///< the last step's update has not been applied
  bool broken_ = false;    ///< steps could not be ended: the states are of none
  std::atomic<std::int64_t> failed_step_{0};
  std::atomic<std::int64_t> mispredicted_step_{0};
  std::atomic<double> clip_factor_{1};           ///< of that
  std::atomic<RankId> ranks_that_know_{0};       ///< likewise, of the ranks of here
  std::map<std::int64_t, double> clip_factors_;  ///< of steps that are made again
  double kept_factor_ = 1;
  std::int64_t kept_step_ = 0;  ///< whose gradients are kept, to update again from the states before it; 0: none
  MovedBytes moved_before_;     ///< by all that is behind us, as the team counts
  MovedBytes wasted_;           ///< by what was given up of the step that is made again
  ClipForecast forecast_;
  bool told_of_repairs_ = false;
  std::set<std::int64_t> skip_;               ///< steps that were not finite
  std::optional<std::vector<SetLoss>> eval_;  ///< after the last step
  std::int64_t saves_in_ = 0;                 ///< the last step that was released to write a checkpoint; 0: none
  Status save_begun_;                         ///< what hindered it, until a step is over
  std::int64_t asked_step_ = 0;               ///< after which somebody wants a checkpoint; 0: nobody does
  MeasuredStep measured_;                     ///< the last one
};

}  // namespace sluice
