#include "src/train/run/reports.h"

#include <cmath>
#include <limits>

#include "sluice/size.h"
#include "src/device/published_peaks.h"
#include "src/device/statistics.h"
#include "src/train/request/profile_doubts.h"
#include "src/train/request/repair.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/metrics_file.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

/// Of the predicted time: beyond what neighbours and noise do.
constexpr double notable_delay = 1.25;
constexpr std::size_t steady_steps_max = 1000;
constexpr std::int64_t metrics_sync_every = CommitLog::results_max / 2;

/// Where steps took clearly longer than predicted the machine is not as it was measured: say so, and what to do.
void tell_delay(const Prepared& run, const std::vector<StepRecord>& steady, TrainObserver& observer) {
  if (steady.size() < 3) return;
  std::vector<double> seconds;
  for (const StepRecord& r : steady) seconds.push_back(r.step_seconds);
  const double measured = median(seconds), predicted = run.step_seconds();
  if (measured < notable_delay * predicted) return;
  std::string text = "steps took " + format_seconds(measured) + ", predicted were " + format_seconds(predicted);
  const auto moved = static_cast<double>(steady.back().moved.nvme_read + steady.back().moved.nvme_write);
  if (moved > 0)
    text += " (the drive moved " + format_rate(moved / measured) + "; the profile has " +
            format_rate(run.profile.drive.mixed_bytes_per_second) + " read and written at once)";
  observer.note(text +
                ": the machine is busier or slower than when it was measured; 'sluice bench all' measures it anew");
}

/// Where steps show that the profile is wrong: say so, and have it measured again.
void compare_with_profile(const Prepared& run, const std::vector<StepRecord>& steady, const Timeline& timeline,
                          bool disturbed, TrainObserver& observer) {
  if (steady.size() < 3) return;
  ObservedSteps steps;
  std::vector<double> seconds;
  for (const StepRecord& r : steady) seconds.push_back(r.step_seconds);
  steps.step_seconds = median(seconds);
  steps.disturbed = disturbed;
  if (!timeline.empty()) steps.op_seconds = seconds_by_key(run.main(), timeline);
  const std::vector<Contradiction> found = contradictions(run, steps);
  if (found.empty()) return;
  for (const Contradiction& c : found) observer.note("the profile is wrong: " + c.text);
  const Status doubted = doubt_profile(run.config, found);
  observer.note(doubted.ok() ? "the next command on a quiet machine measures that again" : doubted.error().message);
}

}  // namespace

StepReports::StepReports(const Prepared& run, TrainObserver& observer, World& world, const RunDirectory* directory,
                         Together& together)
    : run_(run),
      observer_(observer),
      world_(world),
      directory_(directory),
      together_(together),
      path_(metrics_path(run.config)) {}

Status StepReports::begin() {
  if (path_.empty()) return success();
  SLUICE_ASSIGN(metrics_, LineWriter::open(path_, false));
  return success();
}

Status StepReports::go_on(std::int64_t done, const std::function<std::optional<StepResult>(std::int64_t)>& known) {
  written_ = done;
  SLUICE_TRY(together_.lead([&]() -> Status {
    if (path_.empty() || metrics_.is_open()) return success();
    // Records and checkpoints know the last steps.
    const auto rebuilt = [&](std::int64_t step) -> std::optional<std::string> {
      const std::optional<StepResult> result = known(step);
      return result ? std::optional(to_json_line(restored(*result))) : std::nullopt;
    };
    SLUICE_ASSIGN(ContinuedMetrics metrics, continue_metrics(path_, done, rebuilt));
    for (const std::string& line : metrics.notes) observer_.note(line);
    metrics_ = std::move(metrics.writer);
    const std::uint64_t restored = directory_ != nullptr ? directory_->run()->restored_step : 0;
    written_ = std::max(metrics.last_step, static_cast<std::int64_t>(restored));
    return success();
  }));
  SLUICE_ASSIGN(written_, together_.smallest(world_.leads() ? written_ : std::numeric_limits<std::int64_t>::max()));
  return success();
}

/// What follows from step and duration.
void StepReports::fill_rates(StepRecord& r, bool ahead) const {
  if (directory_ != nullptr) r.run = run_name(directory_->run()->id);
  const RunConfig& c = config_of(r.step);
  r.lr = learning_rate(c.optimizer, r.step, c.steps);
  r.tokens = static_cast<std::int64_t>(tokens_after(c, r.step));
  r.bound_seconds = run_.predicted(ahead).bound_seconds;
  r.predicted_seconds = r.repaired ? predict_repair(run_).seconds : run_.predicted(ahead).step_seconds;
  r.rss_bytes = resident_set_bytes();
  if (r.step_seconds <= 0) return;
  r.tokens_per_second = batch_tokens(run_.workload) / r.step_seconds;
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
StepRecord StepReports::restored(const StepResult& result) const {
  StepRecord r;
  r.step = static_cast<std::int64_t>(result.step);
  r.loss = result.loss;
  r.grad_norm = result.grad_norm;
  r.step_seconds = result.seconds;
  r.skipped = (result.marks & StepResult::skipped) != 0;
  r.repaired = (result.marks & StepResult::repaired) != 0;
  for (const StagePlans& stage : run_.stages) {
    const auto bytes = [&](Tier tier) { return stage.main.arena(tier)->arena_bytes; };
    r.device_peak_bytes = std::max(r.device_peak_bytes, bytes(Tier::device));
    r.host_peak_bytes += bytes(Tier::host) * run_.workload.ranks_of_stage();
    r.nvme_peak_bytes += bytes(Tier::nvme) * run_.workload.ranks_of_stage();
  }
  const LinkBytes bytes = step_link_bytes(run_);
  r.moved.h2d = bytes.h2d;
  r.moved.d2h = bytes.d2h;
  r.moved.nvme_read = bytes.nvme_read;
  r.moved.nvme_write = bytes.nvme_write;
  r.moved.collective = bytes.collective;
  r.moved.message = bytes.message;
  fill_rates(r);
  return r;
}

Status StepReports::write(const StepRecord& record) {
  if (record.step <= written_) return success();  // run anew after a step that was given up
  if (metrics_.is_open()) {
    SLUICE_TRY(metrics_.write_line(to_json_line(record)));
    // Commits keep the last lines' contents; older ones must not be lost with the power either.
    const bool keep = record.step % metrics_sync_every == 0 || !record.eval.empty() || record.state_hash;
    if (run_.workload.durable && keep) SLUICE_TRY(metrics_.sync());
  }
  written_ = record.step;
  observer_.step(record);
  return success();
}

/// A run that has gone on may have been another before.
const RunConfig& StepReports::config_of(std::int64_t step) const {
  if (directory_ == nullptr || !directory_->run()) return run_.config;
  return config_of_step(directory_->run()->changes, run_.config, step);
}

void StepReports::add_steady(const StepRecord& record) {
  if (steady_.size() < steady_steps_max) steady_.push_back(record);
}

void StepReports::compare_with_prediction(const Timeline& timeline, bool is_disturbed) const {
  tell_delay(run_, steady_, observer_);
  if (world_.leads()) compare_with_profile(run_, steady_, timeline, is_disturbed, observer_);
}

}  // namespace sluice
