// The training loop: releases steps to the engine, writes metrics, evaluates, and leaves the trained model behind.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "io/publish.h"
#include "io/token_file.h"
#include "src/train/batches.h"
#include "src/train/engine.h"

namespace sluice {

/// One line of the metrics file.
struct StepRecord {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;  ///< seen so far, this step included
  double step_seconds = 0, tokens_per_second = 0, mfu = 0, bound_seconds = 0, predicted_seconds = 0, efficiency = 0;
  std::uint64_t device_peak_bytes = 0, host_peak_bytes = 0, nvme_peak_bytes = 0;
  MovedBytes moved;
  std::uint64_t rss_bytes = 0;
  std::optional<std::uint64_t> state_hash;
  std::optional<double> eval_loss;
};
std::string to_json_line(const StepRecord& record);

/// Told how a run goes, on the thread that called run().
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void note(const std::string&) {}
  virtual void progress(const std::string&, double) {}  ///< fraction of what takes long before the first step
  virtual void step(const StepRecord&) {}
  virtual void evaluated(std::int64_t, double) {}
};

struct TrainResult {
  std::int64_t steps = 0;
  double loss = 0;       ///< of the last step
  double eval_loss = 0;  ///< held-out, after the last step
  bool interrupted = false;
  double seconds = 0;                  ///< of the steps, without evaluations
  std::uint64_t nvme_write_bytes = 0;  ///< of the steps
};

class Trainer final : public StepSource {
 public:
  /// Opens the data and reserves memory and drive; nothing has run yet.
  static Result<std::unique_ptr<Trainer>> create(const Prepared& run, TrainObserver& observer);

  /// All steps, or until `stop` becomes true: then the steps that were released are finished and the model is saved.
  Result<TrainResult> run(const std::atomic<bool>& stop);
  /// Held-out loss in nats per token over `batches` batches.
  Result<double> evaluate(int batches);
  Engine& engine() { return *engine_; }

  Status load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                     std::span<std::int32_t> dst) override;
  Status step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                  std::span<const double> unit_norm_sq, std::span<const double> losses) override;

 private:
  using Clock = std::chrono::steady_clock;
  Trainer(const Prepared& run, TrainObserver& observer) : run_(run), observer_(observer) {}
  StepParams step_params(std::int64_t step) const;
  Status release(std::int64_t step);
  Result<StepRecord> collect(std::int64_t step);
  Status begin_training();
  Status end_training();  ///< drains and applies what is pending
  Status interlude(std::int64_t step, StepRecord& record, bool last);
  void compare_with_prediction(const std::vector<StepRecord>& steady);
  Status write_trace_file();
  double batch_tokens() const;

  const Prepared& run_;
  TrainObserver& observer_;
  TokenFile tokens_;
  Batches batches_;
  LineWriter metrics_;
  std::unique_ptr<Engine> engine_;
  std::atomic<bool> evaluating_{false};

  struct Ended {
    ControlBlock control;
    Clock::time_point at;
  };
  std::array<Ended, 8> ended_{};  ///< ring by step, written on the optimizer lane before the iteration is complete
  Clock::time_point previous_end_;
  std::int64_t first_ = 1;  ///< step of iteration 0 since begin
  bool pending_ = false;    ///< the last step's update has not been applied
  Timeline timeline_;
};

}  // namespace sluice
