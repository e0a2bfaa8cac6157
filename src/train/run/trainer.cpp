#include "src/train/run/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "offload/plan/timeline.h"
#include "sluice/size.h"
#include "src/device/published_peaks.h"
#include "src/device/statistics.h"
#include "src/train/request/profile_doubts.h"
#include "src/train/run/impatience.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

/// Of the predicted time: beyond what neighbours and noise do.
constexpr double notable_delay = 1.25;
constexpr std::size_t steady_steps_max = 1000;
/// A stop waits so long for the steps that are under way, where they can be given up.
constexpr double stop_patience_seconds = 10;
constexpr std::int64_t metrics_sync_every = CommitLog::results_max / 2;

/// Where steps show that the profile is wrong: say so, and have it measured again.
void compare_with_profile(const Prepared& run, const std::vector<StepRecord>& steady, const Timeline& timeline,
                          bool disturbed, TrainObserver& observer) {
  if (steady.size() < 3) return;
  ObservedSteps steps;
  std::vector<double> seconds;
  for (const StepRecord& r : steady) seconds.push_back(r.step_seconds);
  steps.step_seconds = median(seconds);
  steps.disturbed = disturbed;
  if (!timeline.empty()) steps.op_seconds = seconds_by_key(run.main, timeline);
  const std::vector<Contradiction> found = contradictions(run, steps);
  if (found.empty()) return;
  for (const Contradiction& c : found) observer.note("the profile is wrong: " + c.text);
  const Status doubted = doubt_profile(run.config, found);
  observer.note(doubted.ok() ? "the next command on a quiet machine measures that again" : doubted.error().message);
}

}  // namespace

double Trainer::batch_tokens() const {
  const Workload& w = run_.workload;
  return static_cast<double>(w.shape.tokens()) * w.micro_batches * w.ranks();
}

Status Trainer::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                            std::span<std::int32_t> dst) {
  if (WindowLoss* evaluation = evaluation_.load(std::memory_order_acquire))
    return evaluation->load(rank, micro_batch, params, dst);
  const Workload& w = run_.workload;
  const auto rows = static_cast<std::uint64_t>(w.shape.batch);
  const std::uint64_t first =
      ((params.step - 1) * w.ranks() * static_cast<std::uint64_t>(w.micro_batches) + w.global_micro_batch(rank, micro_batch)) *
      rows;
  for (std::uint64_t row = 0; row < rows; ++row)
    SLUICE_TRY(read_sample(first + row, BatchRow::of(dst, row, rows, static_cast<std::uint64_t>(w.shape.sequence))));
  return success();
}

Status Trainer::read_sample(std::uint64_t sample, const BatchRow& row) const {
  return batches_.training().read(batches_.training_window(sample), row);
}

/// Tokens of a global batch that count in its loss.
Result<double> Trainer::count_targets(std::uint64_t step) {
  if (batches_.training().all_count()) return batch_tokens();
  const auto sequence = static_cast<std::uint64_t>(run_.workload.shape.sequence);
  const auto samples = static_cast<std::uint64_t>(batch_tokens()) / sequence;
  scratch_.resize((run_.workload.documents ? 3 : 2) * sequence);
  const BatchRow row = BatchRow::of(scratch_, 0, 1, sequence);
  std::uint64_t targets = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    SLUICE_TRY(read_sample((step - 1) * samples + i, row));
    targets += row.targets_that_count();
  }
  return static_cast<double>(targets);
}

/// Of a step whose results are in the rings. Where nothing counts there is nothing to learn.
double Trainer::mean_loss(std::uint64_t step) const {
  return ended_[step % ended_.size()].control.loss_sum / std::max(targets_[step % targets_.size()], 1.0);
}

Status Trainer::step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                         std::span<const double> losses) {
  if (WindowLoss* evaluation = evaluation_.load(std::memory_order_acquire)) {
    evaluation->collect(rank, params, losses);
    return success();
  }
  if (rank != world_.here().first) return success();
  const Clock::time_point now = Clock::now();
  ended_[params.step % ended_.size()] = {control, now};
  if (!journal_) return success();
  StepResult result;
  result.step = params.step;
  result.loss = mean_loss(params.step);
  result.grad_norm = std::sqrt(control.grad_norm_sq);
  result.seconds = std::chrono::duration<double>(now - previous_report_).count();
  previous_report_ = now;
  journal_->add(result);
  return success();
}

void Trainer::step_not_finite(RankId, const StepParams& params) {
  if (evaluation_.load(std::memory_order_acquire) == nullptr)
    failed_step_.store(static_cast<std::int64_t>(params.step));
}

Status Trainer::commit(RankId rank, const StepParams& params, std::uint8_t parity) {
  return journal_ ? journal_->commit(rank, committed_step(params), parity) : success();
}

StepParams Trainer::step_params(std::int64_t step, double targets) const {
  const OptimizerConfig& o = run_.config.optimizer;
  StepParams p;
  p.step = static_cast<std::uint64_t>(step);
  p.seed = run_.config.seed;
  p.beta1 = static_cast<float>(o.beta1);
  p.beta2 = static_cast<float>(o.beta2);
  p.eps = static_cast<float>(o.eps);
  p.weight_decay = static_cast<float>(o.weight_decay);
  p.clip_norm = static_cast<float>(o.clip_norm);
  p.loss_scale = 1.0 / std::max(targets, 1.0);
  const std::vector<std::int64_t>& poison = run_.config.poison_steps;
  if (std::find(poison.begin(), poison.end(), step) != poison.end())
    p.loss_scale = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t updated = run_.search.schedule.update_ahead ? step - 1 : step;
  const bool due = !run_.search.schedule.update_ahead || pending_;
  p.update_step = due ? static_cast<std::uint64_t>(updated) : 0;
  p.lr = static_cast<float>(learning_rate(o, updated, run_.config.steps));
  return p;
}

Status Trainer::release(std::int64_t step) {
  SLUICE_ASSIGN(const double targets, count_targets(static_cast<std::uint64_t>(step)));
  if (targets == 0) observer_.note("step " + std::to_string(step) + ": none of its tokens counts in the loss");
  targets_[static_cast<std::uint64_t>(step) % targets_.size()] = targets;
  SLUICE_TRY(engine_->team().release(step_params(step, targets)));
  pending_ = run_.search.schedule.update_ahead;
  released_ = step;
  return success();
}

Status Trainer::begin_training(std::int64_t first) {
  first_ = first;
  released_ = first - 1;
  SLUICE_TRY(agree(world_, engine_->begin(PlanKind::train)));
  training_ = true;
  previous_end_ = previous_report_ = Clock::now();
  return success();
}

Status Trainer::end_training() {
  Status drained = drain();
  broken_ = broken_ || !drained.ok();
  return drained;
}

Status Trainer::drain() {
  RankTeam& team = engine_->team();
  if (training_) timeline_ = team.timeline();
  training_ = false;
  SLUICE_TRY(agree(world_, team.end()));
  if (!pending_) return success();
  StepParams p = step_params(released_ + 1, batch_tokens());
  p.step = p.update_step;
  const auto flush = [&]() -> Status {
    SLUICE_TRY(team.release(p));
    return team.end();
  };
  SLUICE_TRY(agree(world_, engine_->begin(PlanKind::flush)));
  SLUICE_TRY(agree(world_, flush()));
  pending_ = false;
  return success();
}

Result<std::vector<SetLoss>> Trainer::evaluate() {
  std::vector<SetLoss> losses;
  for (const EvalSet& set : eval_sets_) {
    WindowLoss evaluation(set.windows, run_.workload);
    evaluation_.store(&evaluation, std::memory_order_release);
    const Result<EvaluateResult> result =
        evaluation.run(*engine_, PlanKind::evaluate, {stop_, stop_patience_seconds}, {});
    evaluation_.store(nullptr, std::memory_order_release);
    if (!result.ok() && result.error().code == ErrorCode::not_finite)
      return fault("evaluation of " + set.name + ": " + result.error().message);
    if (!result.ok()) return result.error();
    losses.push_back({set.name, result->loss});
  }
  return losses;
}

Result<StepRecord> Trainer::collect(std::int64_t step) {
  RankTeam& team = engine_->team();
  const auto iteration = static_cast<std::uint64_t>(step - first_);
  SLUICE_TRY(team.wait(iteration));
  const Ended& e = ended_[static_cast<std::uint64_t>(step) % ended_.size()];
  StepRecord r;
  r.step = step;
  r.loss = mean_loss(static_cast<std::uint64_t>(step));
  r.grad_norm = std::sqrt(e.control.grad_norm_sq);
  r.step_seconds = std::chrono::duration<double>(e.at - previous_end_).count();
  previous_end_ = e.at;
  for (RankId rank = 0; rank < world_.here().count; ++rank) {
    r.device_peak_bytes = std::max(r.device_peak_bytes, team.peak_bytes(Tier::device, rank));
    r.host_peak_bytes += team.peak_bytes(Tier::host, rank);
    r.nvme_peak_bytes += team.peak_bytes(Tier::nvme, rank);
  }
  r.moved = team.moved(iteration);
  fill_rates(r);
  collected_ = step;
  if (!journal_)
    recent_[static_cast<std::uint64_t>(step) % recent_.size()] = {static_cast<std::uint64_t>(step), r.loss, r.grad_norm,
                                                                  r.step_seconds, 0};
  return r;
}

/// What follows from step and duration.
void Trainer::fill_rates(StepRecord& r) const {
  if (directory_ != nullptr) r.run = run_name(directory_->run()->id);
  const RunConfig& c = config_of(r.step);
  r.lr = learning_rate(c.optimizer, r.step, c.steps);
  r.tokens = static_cast<std::int64_t>(batch_tokens()) * r.step;
  r.bound_seconds = run_.predicted.bound_seconds;
  r.predicted_seconds = run_.predicted.step_seconds;
  r.rss_bytes = resident_set_bytes();
  if (r.step_seconds <= 0) return;
  r.tokens_per_second = batch_tokens() / r.step_seconds;
  // A CPU without bf16 arithmetic multiplies widened operands in fp32.
  const bool native = run_.workload.dtype == Dtype::bf16 && run_.profile.peak_flops_bf16 > 0;
  const double of_cpu = native ? run_.profile.peak_flops_bf16 : run_.profile.peak_flops_f32;
  const std::string& device = run_.workload.device;
  const double peak = device.empty() ? of_cpu : published_peak_flops(device, run_.workload.dtype);
  const double devices = device.empty() ? 1 : static_cast<double>(run_.workload.ranks()) / run_.profile.ranks_of_device;
  r.mfu = peak > 0 ? run_.model_flop_per_token * r.tokens_per_second / (peak * devices) : 0;
  r.efficiency = r.bound_seconds / r.step_seconds;
}

/// The line of a step that an earlier process has run: what its commit tells, and what every step of the plan has.
StepRecord Trainer::restored(const StepResult& result) const {
  StepRecord r;
  r.step = static_cast<std::int64_t>(result.step);
  r.loss = result.loss;
  r.grad_norm = result.grad_norm;
  r.step_seconds = result.seconds;
  r.skipped = result.skipped != 0;
  const std::uint64_t ranks = run_.workload.ranks();
  r.device_peak_bytes = run_.arena(Tier::device).arena_bytes;
  r.host_peak_bytes = run_.arena(Tier::host).arena_bytes * ranks;
  r.nvme_peak_bytes = run_.arena(Tier::nvme).arena_bytes * ranks;
  const LinkBytes bytes = plan_link_bytes(run_.main) * ranks;
  r.moved.h2d = bytes.h2d;
  r.moved.d2h = bytes.d2h;
  r.moved.nvme_read = bytes.nvme_read;
  r.moved.nvme_write = bytes.nvme_write;
  r.moved.collective = bytes.collective;
  fill_rates(r);
  return r;
}

/// Steps after which the plan is drained: nothing of the next one overlaps them.
bool Trainer::ends_alone(std::int64_t step) const {
  const RunConfig& c = run_.config;
  return step == c.steps || (c.eval_every > 0 && step % c.eval_every == 0) ||
         (c.hash_every > 0 && step % c.hash_every == 0) || skip_.contains(step + 1);
}

/// What happens between steps: evaluation and hashes, on flushed state.
Status Trainer::interlude(std::int64_t step, StepRecord& record) {
  const RunConfig& c = run_.config;
  if (!ends_alone(step)) return success();
  SLUICE_TRY(end_training());
  if (c.hash_every > 0 && step % c.hash_every == 0) {
    SLUICE_ASSIGN(const std::uint64_t hash, engine_->states().state_hash());
    record.state_hash = hash;
  }
  if (step == c.steps || (c.eval_every > 0 && step % c.eval_every == 0)) {
    SLUICE_ASSIGN(record.eval, evaluate());
    if (step == c.steps) eval_ = record.eval;
    for (const SetLoss& loss : record.eval) observer_.evaluated(step, loss);
  }
  return success();
}

Status Trainer::write(const StepRecord& record) {
  if (record.step <= written_) return success();  // run anew after a step that was given up
  if (metrics_.is_open()) {
    SLUICE_TRY(metrics_.write_line(to_json_line(record)));
    // Commits keep the last lines' contents; older ones must not be lost with the power either.
    const bool keep = record.step % metrics_sync_every == 0 || !record.eval.empty() || record.state_hash;
    if (journal_ && keep) SLUICE_TRY(metrics_.sync());
  }
  written_ = record.step;
  observer_.step(record);
  return success();
}

/// Where steps took clearly longer than predicted the machine is not as it was measured: say so, and what to do.
void Trainer::compare_with_prediction() const {
  if (steady_.size() < 3) return;
  std::vector<double> seconds;
  for (const StepRecord& r : steady_) seconds.push_back(r.step_seconds);
  const double measured = median(seconds), predicted = run_.predicted.step_seconds;
  if (measured < notable_delay * predicted) return;
  std::string text = "steps took " + format_seconds(measured) + ", predicted were " + format_seconds(predicted);
  const auto moved = static_cast<double>(steady_.back().moved.nvme_read + steady_.back().moved.nvme_write);
  if (moved > 0)
    text += " (the drive moved " + format_rate(moved / measured) + "; the profile has " +
            format_rate(run_.profile.drive.mixed_bytes_per_second) + " read and written at once)";
  observer_.note(text +
                 ": the machine is busier or slower than when it was measured; 'sluice bench all' measures it anew");
}

Status Trainer::write_trace_file() {
  if (run_.config.trace.empty() || timeline_.empty() || !world_.leads()) return success();
  return write_trace(run_.config.trace, run_.main, {{"predicted", run_.predicted.timeline}, {"measured", timeline_}});
}

/// Run one step, with the next one released so that its first reads and updates overlap this one's tail.
Result<StepRecord> Trainer::train_step(std::int64_t step, bool stops, TrainResult& result) {
  if (!training_) SLUICE_TRY(begin_training(step));
  const auto collected = [&]() -> Result<StepRecord> {
    while (released_ < std::min(step + 1, run_.config.steps) && !(released_ >= step && (stops || ends_alone(step))))
      SLUICE_TRY(release(released_ + 1));
    return collect(step);
  };
  Result<StepRecord> done = collected();
  const Status agreed = agree(world_, done.ok() ? success() : Status(done.error()));
  // Where ranks are apart none knows what the others have released.
  if (!agreed.ok() && !world_.is_alone() && agreed.error().code != ErrorCode::not_finite && !journal_) broken_ = true;
  SLUICE_TRY(agreed);
  StepRecord record = *std::move(done);
  SLUICE_TRY(together_.share(record));
  if (step > first_ && steady_.size() < steady_steps_max) steady_.push_back(record);
  ++result.timed_steps;
  result.seconds += record.step_seconds;
  result.nvme_write_bytes += record.moved.nvme_write;
  return record;
}

/// The states are those of the step before; data and step numbers go on.
Result<StepRecord> Trainer::pass_over(std::int64_t step) {
  StepResult result;
  result.step = static_cast<std::uint64_t>(step);
  result.loss = result.grad_norm = std::numeric_limits<double>::quiet_NaN();
  result.skipped = 1;
  journal_->add(result);
  return restored(result);
}

/// A step was not finite: go back to what is committed, and remember to leave it out.
Status Trainer::skip_failed(const Error& reason) {
  const Status echo = engine_->team().end();
  (void)echo;
  if (!journal_) return reason;
  SLUICE_ASSIGN(const std::int64_t failed, together_.largest(failed_step_.load()));
  std::int64_t first = failed;
  while (skip_.contains(first - 1)) --first;
  skip_.insert(failed);
  SLUICE_ASSIGN(const std::int64_t committed, together_.smallest(static_cast<std::int64_t>(journal_->committed())));
  if (failed - first + 1 >= run_.config.skip_limit)
    return fault(reason.message + "; steps " + std::to_string(first) + " to " + std::to_string(failed) +
                 " were not finite one after another, and nothing of them is kept: the run stands at step " +
                 std::to_string(committed));
  observer_.note(reason.message + ": nothing of this step is kept, the run goes on with the next one");
  for (RankId r = world_.here().first; r < world_.here().end(); ++r)
    if (journal_->step_back(r, static_cast<std::uint64_t>(committed)))
      engine_->store(r)->set_parity(static_cast<std::uint8_t>(1 - engine_->store(r)->parity()));
  SLUICE_TRY(engine_->states().roll_back());
  training_ = pending_ = false;
  done_ = committed;
  return success();
}

Status Trainer::steps(const std::atomic<bool>& stop, TrainResult& result) {
  while (done_ < run_.config.steps) {
    const std::int64_t step = done_ + 1;
    SLUICE_ASSIGN(const bool stops, together_.any_says(stop.load()));
    // What was released is finished.
    if (stops && !(training_ && released_ >= step)) return end_training();
    Result<StepRecord> record = skip_.contains(step) ? pass_over(step) : train_step(step, stops, result);
    if (!record.ok()) return record.error();
    const Status between = interlude(step, *record);
    // The step is behind us, and its evaluation is left to who goes on.
    if (!between.ok() && between.error().code == ErrorCode::cancelled) done_ = step;
    SLUICE_TRY(between);
    SLUICE_TRY(agree(world_, write(*record)));
    done_ = step;
    result.loss = record->loss;
  }
  return success();
}

Result<TrainResult> Trainer::interrupted(TrainResult result, const std::string& how) {
  if (journal_) {
    SLUICE_ASSIGN(done_, together_.smallest(static_cast<std::int64_t>(journal_->committed())));
  }
  result.steps = done_;
  result.interrupted = true;
  result.resumable = directory_ != nullptr;
  observer_.note(how);
  SLUICE_TRY(save_state());
  if (const Status traced = write_trace_file(); !traced.ok()) observer_.note(traced.error().message);
  return result;
}

Result<TrainResult> Trainer::run(const std::atomic<bool>& stop) {
  TrainResult result;
  SystemCpuClock clock;
  const CpuReading begun = clock.read();
  const bool long_steps = 3 * run_.predicted.step_seconds > stop_patience_seconds;
  std::optional<Impatience> impatience;
  if (journal_) engine_->states().set_stop(&stop);
  // A sum of the library's own can not be called off: such a run stops between steps.
  const bool may_cancel = run_.workload.sums != RankSums::native || !run_.workload.exchanges;
  if (journal_ && may_cancel) impatience.emplace(stop, engine_->team(), long_steps ? 0 : stop_patience_seconds);
  Status ran = complete_metrics(result);
  if (ran.ok()) ran = steps(stop, result);
  while (!ran.ok() && ran.error().code == ErrorCode::not_finite) {
    SLUICE_TRY(skip_failed(ran.error()));
    // The step before may have been committed while this one failed beside it.
    ran = complete_metrics(result);
    if (ran.ok()) ran = steps(stop, result);
  }
  if (!ran.ok()) {
    const Result<bool> stops = together_.any_says(stop.load());
    if (ran.error().code != ErrorCode::cancelled || !stops.ok() || !*stops) return kept(ran.error());
    const Status echo = engine_->team().end();
    (void)echo;
    return interrupted(result, "what was under way is given up: it would have taken too long");
  }
  compare_with_prediction();
  const bool disturbed = !disturbance(begun, clock.read(), clock.cores()).empty();
  if (world_.leads()) compare_with_profile(run_, steady_, timeline_, disturbed, observer_);
  if (done_ < run_.config.steps) return interrupted(result, "the steps under way are finished");
  result.steps = done_;
  if (const Status completed = complete(result); !completed.ok()) {
    SLUICE_ASSIGN(const bool stops, together_.any_says(stop.load()));
    if (completed.error().code != ErrorCode::cancelled || !stops) return kept(completed.error());
    return interrupted(result, "all steps are done; what is left is evaluation and the model");
  }
  if (const Status traced = agree(world_, write_trace_file()); !traced.ok())
    return fault(traced.error().message + "; the run itself is complete");
  return result;
}

}  // namespace sluice
