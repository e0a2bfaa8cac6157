#include "src/train/run/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "src/train/data/rank_planes.h"
#include "src/train/run/save_request.h"

namespace sluice {

Status Trainer::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params,
                            std::span<std::int32_t> dst) {
  if (WindowLoss* evaluation = evaluation_.load(std::memory_order_acquire))
    return evaluation->load(rank, micro_batch, params, dst);
  const Workload& w = run_.workload;
  const auto rows = static_cast<std::uint64_t>(w.shape.batch);
  const std::uint64_t step = params.step - static_cast<std::uint64_t>(phase_.first);
  const std::uint64_t first = (step * w.batch_ranks() * static_cast<std::uint64_t>(w.sequence_batches()) +
                               w.global_micro_batch(rank, micro_batch)) *
                              rows;
  return read_planes(w, rank, micro_batch, dst,
                     [&](std::uint64_t row, const BatchRow& whole) { return read_sample(first + row, whole); });
}

/// Samples are counted from the first one of the phase.
Status Trainer::read_sample(std::uint64_t sample, const BatchRow& row) const {
  return batches_.read(samples_before_ + sample, row);
}

/// Tokens of a global batch that count in its loss.
Result<double> Trainer::count_targets(std::uint64_t step) {
  if (batches_.all_count()) return batch_tokens(run_.workload);
  const auto sequence = static_cast<std::uint64_t>(run_.workload.shape.whole());
  const auto samples = static_cast<std::uint64_t>(batch_tokens(run_.workload)) / sequence;
  scratch_.resize((run_.workload.documents ? 3 : 2) * sequence);
  const BatchRow row = BatchRow::of(scratch_, 0, 1, sequence);
  std::uint64_t targets = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    SLUICE_TRY(read_sample((step - static_cast<std::uint64_t>(phase_.first)) * samples + i, row));
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
  if (life_.journal() == nullptr) return success();
  StepResult result;
  result.step = params.step;
  result.loss = mean_loss(params.step);
  result.grad_norm = std::sqrt(control.grad_norm_sq);
  result.seconds = std::chrono::duration<double>(now - previous_report_).count();
  if (params.again) result.marks = StepResult::repaired;
  previous_report_ = now;
  life_.journal()->add(result);
  return success();
}

void Trainer::step_not_finite(RankId, const StepParams& params) {
  if (evaluation_.load(std::memory_order_acquire) == nullptr)
    failed_step_.store(static_cast<std::int64_t>(params.step));
}

void Trainer::step_mispredicted(RankId rank, const StepParams& params, const ControlBlock& control) {
  if (rank == world_.here().first) ended_[params.step % ended_.size()] = {control, Clock::now()};
  clip_factor_.store(control.clip_factor);
  ++ranks_that_know_;
  mispredicted_step_.store(static_cast<std::int64_t>(params.step));
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
  const std::int64_t updated = leaves_updates() ? step - 1 : step;
  const bool due = !leaves_updates() || pending_;
  p.update_step = due ? static_cast<std::uint64_t>(updated) : 0;
  const auto known = clip_factors_.find(step);
  p.again = known != clip_factors_.end();
  if (p.again && !waits_) p.clip_factor = known->second;
  p.lr = static_cast<float>(learning_rate(o, updated, run_.config.steps));
  if (waits_ || !leaves_updates()) return p;
  p.backward_step = p.step;
  p.backward_lr = static_cast<float>(learning_rate(o, step, run_.config.steps));
  return p;
}

Status Trainer::release(std::int64_t step) {
  SLUICE_ASSIGN(const double targets, count_targets(static_cast<std::uint64_t>(step)));
  if (targets == 0) observer_.note("step " + std::to_string(step) + ": none of its tokens counts in the loss");
  targets_[static_cast<std::uint64_t>(step) % targets_.size()] = targets;
  StepParams params = step_params(step, targets);
  begin_save(params);
  SLUICE_TRY(engine().team().release(params));
  pending_ = leaves_updates();
  released_ = step;
  return success();
}

Status Trainer::begin_training(std::int64_t first) {
  first_ = first;
  released_ = first - 1;
  first_parities_.clear();
  if (run_.workload.durable)
    for (RankId r = world_.here().first; r < world_.here().end(); ++r)
      first_parities_.push_back(engine().store(r)->parity());
  const bool waited = waits_;
  waits_ = wants_to_wait();
  if (waits_ != waited && forecast_.steps() > 0) tell_order();
  SLUICE_TRY(agree(world_, engine().begin(is_other_order() ? &StagePlans::ahead : &StagePlans::main)));
  training_ = true;
  moved_before_ = engine().team().moved();
  // Of a step that is made again the time is that of both.
  if (!clip_factors_.contains(first)) previous_end_ = previous_report_ = Clock::now();
  return success();
}

Status Trainer::end_training() {
  Status drained = drain();
  broken_ = broken_ || !drained.ok();
  return drained;
}

Status Trainer::drain() {
  RankTeam& team = engine().team();
  if (training_) measured_ = {collected_, collected_ == first_, is_other_order(), team.timeline()};
  training_ = false;
  SLUICE_TRY(agree(world_, team.end()));
  if (!pending_) return success();
  SLUICE_TRY(flush(released_, waits_ ? &StagePlans::flush : &StagePlans::flush_late));
  pending_ = false;
  return success();
}

/// The step's updates, or those of it that are late, and nothing else, from gradients that wait. The clip factor is
/// what the last control op has found, or this one.
Status Trainer::flush(std::int64_t step, StepPlan StagePlans::*plan, std::optional<double> clip_factor) {
  StepParams p = step_params(step, batch_tokens(run_.workload));
  p.update_step = p.step;
  p.knows_factor = clip_factor.has_value();
  p.clip_factor = clip_factor.value_or(1);
  p.lr = static_cast<float>(learning_rate(run_.config.optimizer, step, run_.config.steps));
  RankTeam& team = engine().team();
  const auto run = [&]() -> Status {
    SLUICE_TRY(team.release(p));
    return team.end();
  };
  SLUICE_TRY(agree(world_, engine().begin(plan)));
  return agree(world_, run());
}

Result<std::vector<SetLoss>> Trainer::evaluate() {
  std::vector<SetLoss> losses;
  for (const EvalSet& set : eval_sets_) {
    WindowLoss evaluation(set.windows, run_.workload, run_.search.schedule);
    evaluation_.store(&evaluation, std::memory_order_release);
    const Result<EvaluateResult> result =
        evaluation.run(engine(), &StagePlans::evaluate, {stop_, stop_patience_seconds}, {});
    evaluation_.store(nullptr, std::memory_order_release);
    if (!result.ok() && result.error().code == ErrorCode::not_finite)
      return fault("evaluation of " + set.name + ": " + result.error().message);
    if (!result.ok()) return result.error();
    losses.push_back({set.name, result->loss});
  }
  return losses;
}

Result<StepRecord> Trainer::collect(std::int64_t step) {
  RankTeam& team = engine().team();
  const auto iteration = static_cast<std::uint64_t>(step - first_);
  SLUICE_TRY(team.wait(iteration));
  const Ended& e = ended_[static_cast<std::uint64_t>(step) % ended_.size()];
  MovedBytes moved = team.moved(iteration);
  moved_before_ += moved;
  const bool repaired = clip_factors_.erase(step) > 0;
  if (repaired) moved += std::exchange(wasted_, {});
  return record_of(step, e.at, moved, repaired);
}

/// Of a step whose results are in the rings.
StepRecord Trainer::record_of(std::int64_t step, Clock::time_point end, const MovedBytes& moved, bool repaired) {
  const RankTeam& team = engine().team();
  StepRecord r;
  r.step = step;
  r.loss = mean_loss(static_cast<std::uint64_t>(step));
  r.grad_norm = std::sqrt(ended_[static_cast<std::uint64_t>(step) % ended_.size()].control.grad_norm_sq);
  r.step_seconds = std::chrono::duration<double>(end - previous_end_).count();
  previous_end_ = end;
  for (RankId rank = 0; rank < world_.here().count; ++rank) {
    r.device_peak_bytes = std::max(r.device_peak_bytes, team.peak_bytes(Tier::device, rank));
    r.host_peak_bytes += team.peak_bytes(Tier::host, rank);
    r.nvme_peak_bytes += team.peak_bytes(Tier::nvme, rank);
  }
  r.moved = moved;
  r.repaired = repaired;
  reports_.fill_rates(r, is_other_order());
  collected_ = step;
  life_.remember({static_cast<std::uint64_t>(step), r.loss, r.grad_norm, r.step_seconds, 0});
  forecast_.add(clips(r.grad_norm));
  return r;
}

/// A step whose norm and gradients are known, and whose updates are to be made with its true clip factor.
Result<StepRecord> Trainer::update_again(std::int64_t step) {
  kept_step_ = 0;
  StepResult result;
  result.step = static_cast<std::uint64_t>(step);
  result.loss = mean_loss(result.step);
  result.grad_norm = std::sqrt(ended_[result.step % ended_.size()].control.grad_norm_sq);
  // The updates that are still to come, as predicted: their commit tells it.
  result.seconds = std::chrono::duration<double>(Clock::now() - previous_report_).count() +
                   run_.stages.front().predicted_flush.step_seconds;
  result.marks = StepResult::repaired;
  life_.journal()->add(result);
  SLUICE_TRY(flush(step, &StagePlans::flush, kept_factor_));  // an evaluation may have come since the norm was found
  MovedBytes moved = engine().team().moved();
  moved -= std::exchange(moved_before_, moved);
  released_ = step;
  previous_report_ = Clock::now();
  return record_of(step, previous_report_, moved, true);
}

/// Steps after which a checkpoint is saved.
bool Trainer::saves(std::int64_t step) const {
  return step == asked_step_ || (run_.config.save_every > 0 && step % run_.config.save_every == 0);
}

/// Of those, where the states are written by the updates that make them, while training goes on: nothing else wants
/// them at rest.
bool Trainer::saves_beside(std::int64_t step) const {
  return run_.workload.saves && step > 0 && step % run_.config.save_every == 0 && step != asked_step_ &&
         !drains_after(step);
}

/// Where the iteration's updates make the states that are due. With updates in both passes two iterations do.
void Trainer::begin_save(StepParams& params) {
  const bool mixes = params.backward_step != 0;
  const auto step = static_cast<std::int64_t>(params.step),
             updated = mixes ? step : static_cast<std::int64_t>(params.update_step);
  params.saves = mixes && params.update_step != 0 && life_.saving() == step - 1;
  if (updated == 0 || !saves_beside(updated)) return;
  std::vector<std::uint8_t> slots(first_parities_);
  const auto iteration = static_cast<std::uint64_t>(step - first_);
  for (std::uint8_t& slot : slots) slot = static_cast<std::uint8_t>(1 - (slot ^ (iteration & 1)));
  save_begun_ = life_.begin_save(updated, checkpoints_path(run_.config), slots);
  if (!save_begun_.ok()) return;
  saves_in_ = mixes ? step + 1 : step;
  (mixes ? params.saves_back : params.saves) = true;
}

/// The step that wrote a checkpoint has ended, and the next one runs.
Status Trainer::finish_save(StepRecord& record) {
  SLUICE_TRY(std::exchange(save_begun_, success()));
  life_.describe_save(record.step);
  if (life_.saving() == 0 || record.step != saves_in_) return success();
  record.saved_step = life_.saving();
  return life_.finish_save(run_.config.keep);
}

/// Somebody else asks for a checkpoint (sluice checkpoint save): it is of the next step that nothing overlaps.
Status Trainer::look_for_request() {
  if (directory_ == nullptr || asked_step_ > done_) return success();
  // What ranks have released may differ where a step was given up.
  const bool asked = world_.leads() && SaveRequest(directory_->path()).is_open();
  const std::int64_t due = std::min(std::max(released_, done_) + 1, phase_.last);
  SLUICE_ASSIGN(const std::string step, from_leader(world_, asked ? std::to_string(due) : ""));
  if (!step.empty()) asked_step_ = std::stoll(step);
  return success();
}

/// The checkpoints that are due after this step.
Status Trainer::save(std::int64_t step) {
  const RunConfig& c = run_.config;
  if (c.save_every > 0 && step % c.save_every == 0)
    SLUICE_TRY(life_.save_checkpoint(step, checkpoints_path(c), c.keep));
  if (step != asked_step_) return success();
  const SaveRequest request(directory_->path());
  SLUICE_ASSIGN(const std::string parent, from_leader(world_, request.asked().value_or("")));
  if (parent.empty()) return success();  // taken back
  const Status saved = life_.save_checkpoint(step, parent, 0);
  if (world_.leads()) request.done(saved);
  // What somebody else wants does not end the run, unless ranks do not know of each other any more.
  if (!saved.ok()) observer_.note("the checkpoint that was asked for is not there: " + saved.error().message);
  return world_.has_lost_a_process() ? saved : success();
}

/// Steps whose states something needs at rest, checkpoints aside.
bool Trainer::drains_after(std::int64_t step) const {
  const RunConfig& c = run_.config;
  return step == phase_.last || (c.eval_every > 0 && step % c.eval_every == 0) ||
         (c.hash_every > 0 && step % c.hash_every == 0) || skip_.contains(step + 1);
}

/// Steps after which the plan is drained: nothing of the next one overlaps them.
bool Trainer::ends_alone(std::int64_t step) const { return drains_after(step) || (saves(step) && !saves_beside(step)); }

/// What happens between steps, on flushed state: hashes, evaluation, checkpoints.
Status Trainer::interlude(std::int64_t step, StepRecord& record) {
  const RunConfig& c = run_.config;
  SLUICE_TRY(finish_save(record));
  // Where the run is to stop, the iteration that would have saved them is not there.
  const bool goes_on = life_.saving() == step && (saves_in_ == step || released_ > step);
  const bool is_saved = saves_beside(step) && (goes_on || record.saved_step == step);
  const bool is_left = saves_beside(step) && !is_saved;
  const bool changes_order = training_ && released_ == step && wants_to_wait() != waits_;
  if (!ends_alone(step) && !is_left && !changes_order) return success();
  SLUICE_TRY(end_training());
  if (is_left) life_.drop_save();  // the half of it that this step's iteration has written
  if (c.hash_every > 0 && step % c.hash_every == 0) {
    SLUICE_ASSIGN(const std::uint64_t hash, engine().states().state_hash());
    record.state_hash = hash;
  }
  if (step == c.steps || (c.eval_every > 0 && step % c.eval_every == 0)) {
    SLUICE_ASSIGN(record.eval, evaluate());
    if (step == c.steps) eval_ = record.eval;
    for (const SetLoss& loss : record.eval) observer_.evaluated(step, loss);
  }
  if (saves(step) && !is_saved && directory_ != nullptr) SLUICE_TRY(save(step));
  return success();
}

/// With the next one released so that its first reads and updates overlap this one's tail. Not behind a save of two
/// steps: the next one's updates in the backward pass write the slot that is saved.
Result<StepRecord> Trainer::run_step(std::int64_t step, bool stops) {
  const bool ends_save = life_.saving() > 0 && life_.saving() < step && saves_in_ == step && !waits_;
  const bool stays = !stops && !ends_alone(step) && wants_to_wait() == waits_ && !ends_save;
  while (released_ < std::min(step + 1, phase_.last) && (stays || released_ < step)) SLUICE_TRY(release(released_ + 1));
  return collect(step);
}

Result<StepRecord> Trainer::train_step(std::int64_t step, bool stops, TrainResult& result) {
  const bool is_kept = step == kept_step_;
  if (!is_kept && !training_) SLUICE_TRY(begin_training(step));
  Result<StepRecord> done = is_kept ? update_again(step) : run_step(step, stops);
  const Status agreed = agree(world_, done.ok() ? success() : Status(done.error()));
  // Where ranks are apart none knows what the others have released.
  if (!agreed.ok() && !world_.is_alone() && !is_of_step(agreed.error()) && life_.journal() == nullptr) broken_ = true;
  SLUICE_TRY(agreed);
  StepRecord record = *std::move(done);
  SLUICE_TRY(together_.share(record));
  const bool as_planned = !is_other_order() && !record.repaired;
  if (step > first_ && step != saves_in_ && as_planned) reports_.add_steady(record);
  ++result.timed_steps;
  result.seconds += record.step_seconds;
  result.nvme_write_bytes += record.moved.nvme_write;
  result.repaired += record.repaired ? 1 : 0;
  return record;
}

/// The states are those of the step before; data and step numbers go on.
Result<StepRecord> Trainer::pass_over(std::int64_t step) {
  StepResult result;
  result.step = static_cast<std::uint64_t>(step);
  result.loss = result.grad_norm = std::numeric_limits<double>::quiet_NaN();
  result.marks = StepResult::skipped;
  if (life_.journal() != nullptr)
    life_.journal()->add(result);
  else  // durable when it was left out
    life_.remember(result);
  return reports_.restored(result);
}

bool Trainer::clips(double grad_norm) const {
  const float limit = run_.config.optimizer.clip_norm;
  return limit > 0 && clip_factor(grad_norm, limit) < 1;
}

/// Whether a step's updates, or some of them, are left to the next one's forward pass.
bool Trainer::leaves_updates() const { return waits_ || run_.search.schedule.mixes(); }

/// Whether updates of the next steps are to wait for the norm.
bool Trainer::wants_to_wait() const { return run_.search.schedule.update_ahead || forecast_.waits(waits_); }

void Trainer::tell_order() {
  const std::string share = std::to_string(forecast_.clipped()) + " of the last " + std::to_string(forecast_.steps()) +
                            " steps have clipped: ";
  observer_.note(share +
                 (waits_ ? "from step " + std::to_string(first_) + " on updates wait for the norm"
                         : "from step " + std::to_string(first_) + " on updates are made before the norm is known"));
}

/// To the states that are committed. Gradients that wait are forgotten, or stay: of the step that is updated again.
Status Trainer::go_back(std::int64_t committed, bool keeps_gradients) {
  for (RankId r = world_.here().first; r < world_.here().end(); ++r)
    if (life_.journal()->step_back(r, static_cast<std::uint64_t>(committed)))
      engine().store(r)->set_parity(static_cast<std::uint8_t>(1 - engine().store(r)->parity()));
  SLUICE_TRY(engine().states().roll_back(keeps_gradients));
  training_ = pending_ = false;
  done_ = committed;
  // What was being saved is written anew: by the same updates, or, where those are committed, as it lies.
  const std::int64_t saving = life_.saving();
  life_.drop_save();
  if (saving > 0 && saving == committed) return save(saving);
  return success();
}

/// A step was not finite: go back to what is committed, and remember to leave it out.
Status Trainer::skip_failed(const Error& reason) {
  SLUICE_ASSIGN(const std::int64_t failed, together_.largest(failed_step_.load()));
  std::int64_t first = failed;
  while (skip_.contains(first - 1)) --first;
  skip_.insert(failed);
  SLUICE_ASSIGN(const std::int64_t committed,
                together_.smallest(static_cast<std::int64_t>(life_.journal()->committed())));
  if (failed - first + 1 >= run_.config.skip_limit)
    return fault(reason.message + "; steps " + std::to_string(first) + " to " + std::to_string(failed) +
                 " were not finite one after another, and nothing of them is kept: the run stands at step " +
                 std::to_string(committed));
  observer_.note(reason.message + ": nothing of this step is kept, the run goes on with the next one");
  return go_back(committed);
}

/// A step has clipped where none was expected to: go back to what is committed, and make its updates again with its
/// true factor, from its gradients, where they are kept and the step before is committed. Else make all of it again:
/// what it computes is the same to the bit, its norm too.
Status Trainer::repair() {
  SLUICE_ASSIGN(const std::int64_t step, together_.largest(mispredicted_step_.load()));
  if (clip_factors_.contains(step))
    return fault("step " + std::to_string(step) +
                 " was made again, and its norm is another one: what computes it does not give the same bits twice; "
                 "go on with --update ahead");
  const RankId know = ranks_that_know_.exchange(0);
  const bool is_known = mispredicted_step_.exchange(0) == step;
  // Of positive doubles the larger one has the larger bits. Who was stopped ahead of the norm has none.
  const double own = is_known ? clip_factor_.load() : 0;
  SLUICE_ASSIGN(const std::int64_t bits, together_.largest(std::bit_cast<std::int64_t>(own)));
  SLUICE_ASSIGN(const std::int64_t committed,
                together_.smallest(static_cast<std::int64_t>(life_.journal()->committed())));
  // Whose norm is not there may lack gradients too.
  const bool has_kept = run_.search.schedule.keeps_gradients && is_known && know == world_.here().count;
  SLUICE_ASSIGN(const bool lacks_any, together_.any_says(!has_kept));
  std::int64_t before = step - 1;
  while (before > committed && skip_.contains(before)) --before;
  const bool from_gradients = !lacks_any && committed == before;
  if (from_gradients) {
    kept_step_ = step;
    kept_factor_ = std::bit_cast<double>(bits);
  } else {
    clip_factors_[step] = std::bit_cast<double>(bits);
    wasted_ = engine().team().moved();
    wasted_ -= moved_before_;
  }
  if (!std::exchange(told_of_repairs_, true))
    observer_.note(
        "step " + std::to_string(step) + " clips: " +
        (from_gradients ? "its updates are made again, from gradients that were kept," : "it is made again") +
        " with what its norm says, and so is every other that does");
  SLUICE_TRY(go_back(committed, from_gradients));
  if (from_gradients) done_ = step - 1;  // between the two are steps that were left out, and their lines are there
  return success();
}

/// Back to a state from which the run can go on, where one is kept.
Status Trainer::recover(const Error& reason) {
  const Status echo = engine().team().end();
  (void)echo;
  if (life_.journal() == nullptr) return reason;
  return reason.code == ErrorCode::mispredicted ? repair() : skip_failed(reason);
}

Status Trainer::steps(const std::atomic<bool>& stop, TrainResult& result) {
  while (done_ < phase_.last) {
    const std::int64_t step = done_ + 1;
    SLUICE_ASSIGN(const bool stops, together_.any_says(stop.load()));
    SLUICE_TRY(look_for_request());
    // What was released is finished.
    if (stops && !(training_ && released_ >= step)) return end_training();
    Result<StepRecord> record = skip_.contains(step) ? pass_over(step) : train_step(step, stops, result);
    if (!record.ok()) return record.error();
    // What comes behind a step of the phase before came when that was left out.
    const Status between = step < phase_.first ? success() : interlude(step, *record);
    // The step is behind us, and its evaluation is left to who goes on.
    if (!between.ok() && between.error().code == ErrorCode::cancelled) done_ = step;
    SLUICE_TRY(between);
    SLUICE_TRY(agree(world_, reports_.write(*record)));
    done_ = step;
    result.loss = record->loss;
  }
  return success();
}

}  // namespace sluice
