#include "src/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "offload/plan/timeline.h"
#include "sluice/size.h"
#include "src/device/statistics.h"
#include "src/train/export.h"

namespace sluice {
namespace {

/// Of the predicted time: beyond what neighbours and noise do.
constexpr double notable_delay = 1.25;
constexpr std::size_t steady_steps_max = 1000;

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const Prepared& run, TrainObserver& observer) {
  if (!run.search.fits) return does_not_fit(run);
  const RunConfig& c = run.config;
  std::unique_ptr<Trainer> t(new Trainer(run, observer));
  SLUICE_ASSIGN(t->tokens_, open_data(c, run.model.config));
  SLUICE_ASSIGN(t->batches_, Batches::create(t->tokens_, c.sequence, c.seed));
  observer.note("reserving " + std::to_string(run.workload.ranks) + " x device and host arenas, and the swap file");
  SLUICE_ASSIGN(t->engine_, Engine::create(run, *t, !c.trace.empty()));
  if (!t->engine_->storage().empty()) observer.note("drive tier: " + t->engine_->storage());
  if (!c.metrics.empty()) {
    SLUICE_ASSIGN(t->metrics_, LineWriter::open(c.metrics, false));
  }
  const std::string what = c.init.empty() ? "initialising random weights" : "reading weights from " + c.init;
  observer.note(what);
  SLUICE_TRY(t->engine_->initialize(c.init, c.seed, [&](double fraction) { observer.progress(what, fraction); }));
  return t;
}

double Trainer::batch_tokens() const {
  const Workload& w = run_.workload;
  return static_cast<double>(w.shape.tokens()) * w.micro_batches * w.ranks;
}

Status Trainer::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                            std::span<std::int32_t> dst) {
  const Workload& w = run_.workload;
  const auto columns = static_cast<std::size_t>(w.shape.sequence) + 1;
  const auto rows = static_cast<std::uint64_t>(w.shape.batch);
  const auto micro_batches = static_cast<std::uint64_t>(w.micro_batches);
  const std::uint64_t first =
      (((params.step - 1) * w.ranks + rank) * micro_batches + static_cast<std::uint64_t>(micro_batch)) * rows;
  for (std::uint64_t row = 0; row < rows; ++row) {
    const auto out = dst.subspan(row * columns, columns);
    if (evaluating_.load(std::memory_order_relaxed)) {
      SLUICE_TRY(batches_.held_out_sample(first + row, out));
    } else {
      SLUICE_TRY(batches_.training_sample(first + row, out));
    }
  }
  return success();
}

Status Trainer::step_end(RankId rank, const StepParams& params, const ControlBlock& control, std::span<const double>,
                         std::span<const double>) {
  if (rank == 0) ended_[params.step % ended_.size()] = {control, Clock::now()};
  return success();
}

StepParams Trainer::step_params(std::int64_t step) const {
  const OptimizerConfig& o = run_.config.optimizer;
  StepParams p;
  p.step = static_cast<std::uint64_t>(step);
  p.beta1 = static_cast<float>(o.beta1);
  p.beta2 = static_cast<float>(o.beta2);
  p.eps = static_cast<float>(o.eps);
  p.weight_decay = static_cast<float>(o.weight_decay);
  p.clip_norm = static_cast<float>(o.clip_norm);
  p.loss_scale = 1.0 / batch_tokens();
  const std::int64_t updated = run_.search.schedule.update_ahead ? step - 1 : step;
  const bool due = !run_.search.schedule.update_ahead || pending_;
  p.update_step = due ? static_cast<std::uint64_t>(updated) : 0;
  p.lr = static_cast<float>(learning_rate(o, updated, run_.config.steps));
  return p;
}

Status Trainer::release(std::int64_t step) {
  SLUICE_TRY(engine_->executor().release(step_params(step)));
  pending_ = run_.search.schedule.update_ahead;
  return success();
}

Status Trainer::begin_training() {
  SLUICE_TRY(engine_->executor().begin(run_.main));
  previous_end_ = Clock::now();
  return success();
}

Status Trainer::end_training() {
  Executor& executor = engine_->executor();
  if (!run_.config.trace.empty()) timeline_ = executor.timeline();
  SLUICE_TRY(executor.end());
  if (!pending_) return success();
  StepParams p = step_params(first_);
  p.step = p.update_step;
  SLUICE_TRY(executor.begin(run_.flush));
  SLUICE_TRY(executor.release(p));
  SLUICE_TRY(executor.end());
  pending_ = false;
  return success();
}

Result<double> Trainer::evaluate(int batches) {
  Executor& executor = engine_->executor();
  evaluating_ = true;
  SLUICE_TRY(executor.begin(run_.evaluate));
  double sum = 0;
  for (int i = 0; i < batches; ++i) {
    StepParams p;
    p.step = static_cast<std::uint64_t>(i) + 1;
    SLUICE_TRY(executor.release(p));
    SLUICE_TRY(executor.wait(static_cast<std::uint64_t>(i)));
    sum += ended_[p.step % ended_.size()].control.loss_sum;
  }
  SLUICE_TRY(executor.end());
  evaluating_ = false;
  return sum / (batch_tokens() * batches);
}

Result<StepRecord> Trainer::collect(std::int64_t step) {
  Executor& executor = engine_->executor();
  const auto iteration = static_cast<std::uint64_t>(step - first_);
  SLUICE_TRY(executor.wait(iteration));
  const Ended& e = ended_[static_cast<std::uint64_t>(step) % ended_.size()];
  StepRecord r;
  r.step = step;
  r.loss = e.control.loss_sum / batch_tokens();
  r.grad_norm = std::sqrt(e.control.grad_norm_sq);
  r.lr = learning_rate(run_.config.optimizer, step, run_.config.steps);
  r.tokens = static_cast<std::int64_t>(batch_tokens()) * step;
  r.step_seconds = std::chrono::duration<double>(e.at - previous_end_).count();
  previous_end_ = e.at;
  r.tokens_per_second = batch_tokens() / r.step_seconds;
  // A CPU without bf16 arithmetic multiplies widened operands in fp32.
  const bool native = run_.workload.dtype == Dtype::bf16 && run_.profile.peak_flops_bf16 > 0;
  const double peak = native ? run_.profile.peak_flops_bf16 : run_.profile.peak_flops_f32;
  r.mfu = peak > 0 ? run_.model_flop_per_token * r.tokens_per_second / peak : 0;
  r.bound_seconds = run_.predicted.bound_seconds;
  r.predicted_seconds = run_.predicted.step_seconds;
  r.efficiency = r.bound_seconds / r.step_seconds;
  for (RankId rank = 0; rank < run_.workload.ranks; ++rank) {
    r.device_peak_bytes = std::max(r.device_peak_bytes, executor.peak_bytes(Tier::device, rank));
    r.host_peak_bytes += executor.peak_bytes(Tier::host, rank);
    r.nvme_peak_bytes += executor.peak_bytes(Tier::nvme, rank);
  }
  r.moved = executor.moved(iteration);
  r.rss_bytes = resident_set_bytes();
  return r;
}

/// What happens between steps: evaluation and hashes, on flushed state.
Status Trainer::interlude(std::int64_t step, StepRecord& record, bool last) {
  const RunConfig& c = run_.config;
  const bool evaluates = last || (c.eval_every > 0 && step % c.eval_every == 0);
  const bool hashes = c.hash_every > 0 && step % c.hash_every == 0;
  if (!evaluates && !hashes) return success();
  first_ = step + 1;
  SLUICE_TRY(end_training());
  if (hashes) {
    SLUICE_ASSIGN(const std::uint64_t hash, engine_->state_hash());
    record.state_hash = hash;
  }
  if (evaluates) {
    SLUICE_ASSIGN(const double loss, evaluate(c.eval_batches));
    record.eval_loss = loss;
    observer_.evaluated(step, loss);
  }
  return last ? success() : begin_training();
}

/// Where steps took clearly longer than predicted the machine is not as it was measured: say so, and what to do.
void Trainer::compare_with_prediction(const std::vector<StepRecord>& steady) {
  if (steady.size() < 3) return;
  std::vector<double> seconds;
  for (const StepRecord& r : steady) seconds.push_back(r.step_seconds);
  const double measured = median(seconds), predicted = run_.predicted.step_seconds;
  if (measured < notable_delay * predicted) return;
  std::string text = "steps took " + format_seconds(measured) + ", predicted were " + format_seconds(predicted);
  const auto moved = static_cast<double>(steady.back().moved.nvme_read + steady.back().moved.nvme_write);
  if (moved > 0)
    text += " (the drive moved " + format_rate(moved / measured) + "; the profile has " +
            format_rate(run_.profile.drive.mixed_bytes_per_second) + " read and written at once)";
  observer_.note(text +
                 ": the machine is busier or slower than when it was measured; 'sluice bench all' measures it anew");
}

Status Trainer::write_trace_file() {
  if (run_.config.trace.empty()) return success();
  return write_trace(run_.config.trace, run_.main, {{"predicted", run_.predicted.timeline}, {"measured", timeline_}});
}

Result<TrainResult> Trainer::run(const std::atomic<bool>& stop) {
  const RunConfig& c = run_.config;
  TrainResult result;
  const auto ends_alone = [&](std::int64_t step) {
    return step == c.steps || (c.eval_every > 0 && step % c.eval_every == 0) ||
           (c.hash_every > 0 && step % c.hash_every == 0);
  };
  SLUICE_TRY(begin_training());
  std::vector<StepRecord> steady;  // steps that begin in the tail of the one before, as the prediction has it
  std::int64_t released = 0;
  for (std::int64_t step = 1; step <= c.steps; ++step) {
    // One step ahead, so that its first reads and updates overlap this step's tail.
    while (released < std::min(step + 1, c.steps) && !stop.load() && !(released >= step && ends_alone(step)))
      SLUICE_TRY(release(++released));
    const bool last = step == c.steps || (stop.load() && released == step);
    if (released < step) break;
    SLUICE_ASSIGN(StepRecord record, collect(step));
    if (step > first_ && steady.size() < steady_steps_max) steady.push_back(record);
    SLUICE_TRY(interlude(step, record, last));
    if (metrics_.is_open()) SLUICE_TRY(metrics_.write_line(to_json_line(record)));
    observer_.step(record);
    result.steps = step;
    result.loss = record.loss;
    result.seconds += record.step_seconds;
    result.nvme_write_bytes += record.moved.nvme_write;
    if (record.eval_loss) result.eval_loss = *record.eval_loss;
    if (last) break;
  }
  result.interrupted = result.steps < c.steps;
  compare_with_prediction(steady);
  if (!c.run.empty()) {
    observer_.note("saving the model to " + c.run);
    SLUICE_TRY(export_model(*engine_, run_, c.run));
  }
  SLUICE_TRY(write_trace_file());
  return result;
}

}  // namespace sluice
