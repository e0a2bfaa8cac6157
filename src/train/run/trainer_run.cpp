// A run as a whole: its inputs, what comes before its steps, and how it ends.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "offload/plan/timeline.h"
#include "src/comm/in_process.h"
#include "src/device/quiet.h"
#include "src/train/request/repair.h"
#include "src/train/run/alike.h"
#include "src/train/run/impatience.h"
#include "src/train/run/new_files.h"
#include "src/train/run/trainer.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

Error with(const Error& error, const std::string& what) { return {error.code, error.message + "; " + what}; }

ClipForecast::Costs costs_of_orders(const Prepared& run) {
  return {run.step_seconds(), predict_repair(run).seconds, run.predicted(true).step_seconds,
          predict_change_seconds(run)};
}

/// The leader's costs, and which of the last steps clipped, as all processes have them: machines that are not alike
/// predict other times, and may know other steps.
Result<ClipForecast> agreed_forecast(World& world, const Prepared& run, const std::vector<bool>& clipped) {
  const ClipForecast::Costs own = costs_of_orders(run);
  nlohmann::json told{own.speculative, own.repaired, own.ahead, own.changing, clipped};
  SLUICE_ASSIGN(const std::string text, from_leader(world, world.leads() ? told.dump() : ""));
  told = nlohmann::json::parse(text, nullptr, false);
  if (!told.is_array() || told.size() != 5) return fault("what rank 0 predicts has not arrived");
  ClipForecast forecast({told[0], told[1], told[2], told[3]}, run.changes_order());
  for (const bool c : told[4].get<std::vector<bool>>()) forecast.add(c);
  return forecast;
}

}  // namespace

void TrainResult::add(const TrainResult& earlier) {
  timed_steps += earlier.timed_steps;
  seconds += earlier.seconds;
  nvme_write_bytes += earlier.nvme_write_bytes;
  repaired += earlier.repaired;
  saves += earlier.saves;
}

Trainer::Trainer(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
                 World* world)
    : run_(run),
      phase_(phase_of(run.config)),
      samples_before_(samples_before(run.config)),
      observer_(observer),
      directory_(directory),
      stop_(stop),
      own_world_(world == nullptr ? std::make_unique<InProcessWorld>(run.workload.ranks()) : nullptr),
      world_(world == nullptr ? *own_world_ : *world),
      together_(world_, directory),
      reports_(run, observer, world_, directory, together_),
      life_(run, observer, directory, stop, world_, together_, reports_),
      waits_(run.search.schedule.update_ahead),
      forecast_(costs_of_orders(run), run.changes_order()) {}

Result<std::unique_ptr<Trainer>> Trainer::create(const Prepared& run, TrainObserver& observer, RunDirectory* directory,
                                                 const std::atomic<bool>* stop, World* world) {
  if (!run.search.fits) return does_not_fit(run);
  const RunConfig& c = run.config;
  SLUICE_CHECK(c.run.empty() == (directory == nullptr), "(a run in '%s' and its directory)", c.run.c_str());
  std::unique_ptr<Trainer> t(new Trainer(run, observer, directory, stop, world));
  NewFiles tokens_made(directory != nullptr && directory->run() ? c.run + "/tokens" : "");
  // Who leads makes tokens of texts; the others find them.
  Status opened = t->world_.leads() ? t->open_tokens() : success();
  SLUICE_TRY(agree(t->world_, opened));
  if (!t->world_.leads()) opened = t->open_tokens();
  SLUICE_TRY(agree(t->world_, opened));
  SLUICE_TRY(t->compare_inputs());
  SLUICE_TRY(t->life_.open(*t, {t->tokens_.count(), t->data_hash_}));
  tokens_made.keep();
  t->done_ = t->life_.done();
  t->skip_ = t->life_.skipped();
  t->first_ = t->done_ + 1;
  // What the phase before has left out at its end stays so, and can not be made again here.
  for (std::int64_t step = t->first_; step < t->phase_.first; ++step) t->skip_.insert(step);
  std::vector<bool> clipped;
  for (std::int64_t step = t->done_ - static_cast<std::int64_t>(ClipForecast::steps_max) + 1; step <= t->done_; ++step)
    if (const auto result = t->life_.find_result(step); result && (result->marks & StepResult::skipped) == 0)
      clipped.push_back(t->clips(result->grad_norm));
  SLUICE_ASSIGN(t->forecast_, agreed_forecast(t->world_, run, clipped));
  SLUICE_TRY(t->reports_.go_on(t->done_, [life = &t->life_](std::int64_t step) { return life->find_result(step); }));
  return t;
}

/// Of processes: each may have read a file of its own machine.
Status Trainer::compare_inputs() {
  if (world_.is_alone()) return success();
  const auto sets = mark_of_sets(eval_sets_);
  SLUICE_TRY(agree(world_, sets.ok() ? success() : Status(sets.error())));
  SLUICE_TRY(check_alike(world_, "tokens of " + run_.config.data, data_hash_));
  SLUICE_TRY(check_alike(world_, "data to evaluate on", *sets));
  // A run that goes on reads none, and they may be gone.
  SLUICE_ASSIGN(const bool is_new, together_.leader_says([&] { return directory_ == nullptr || !directory_->run(); }));
  if (!is_new) return success();
  return check_alike(world_, "weights in " + run_.config.init, mark_of_weights(run_.config.init));
}

Status Trainer::open_tokens() {
  const RunConfig& c = run_.config;
  const auto note = [this](const std::string& text) { observer_.note(text); };
  SLUICE_ASSIGN(tokens_, open_data(c, run_.model.config, note, [&](double fraction) {
                  // Who is refused where a run goes on reads one line.
                  const bool is_quiet = directory_ != nullptr && directory_->run();
                  if (is_quiet && (stop_ == nullptr || !stop_->load())) return success();
                  return life_.pass_on("tokenizing " + c.data, fraction);
                }));
  SLUICE_ASSIGN(batches_, Batches::for_training(tokens_, c, run_.workload.documents));
  SLUICE_ASSIGN(eval_sets_, open_eval_sets(c, run_.model.config, run_.workload.documents, batches_, note));
  observer_.note(shown(c, batches_, eval_sets_));
  SLUICE_TRY(check_lengths());
  if (directory_ != nullptr || !world_.is_alone()) {
    SLUICE_ASSIGN(data_hash_, tokens_.hash());
  }
  return success();
}

/// Who was killed, or went back, between a step's commit and its line left the line to this.
Status Trainer::complete_metrics(TrainResult& result) {
  std::int64_t lost = 0;
  for (std::int64_t step = reports_.written() + 1; step <= done_; ++step) {
    const std::optional<StepResult> known = life_.find_result(step);
    SLUICE_ASSIGN(const bool is_known, together_.leader_says([&] { return known.has_value(); }));
    if (!is_known) {
      ++lost;
      continue;
    }
    StepRecord record = reports_.restored(known.value_or(StepResult{.step = static_cast<std::uint64_t>(step)}));
    if (step == done_) SLUICE_TRY(interlude(step, record));
    SLUICE_TRY(agree(world_, reports_.write(record)));
  }
  if (lost > 0) observer_.note(reports_.path() + ": the lines of " + std::to_string(lost) + " steps are lost");
  if (const std::optional<StepResult> known = life_.find_result(done_)) result.loss = known->loss;
  return success();
}

Status Trainer::write_timelines() {
  if (measured_.timeline.empty() || !world_.leads()) return success();
  if (directory_ != nullptr) SLUICE_TRY(keep_timeline(*directory_, run_, measured_));
  if (run_.config.trace.empty()) return success();
  return write_trace(run_.config.trace, run_.plan(measured_.ahead),
                     {{"predicted", run_.predicted(measured_.ahead).timeline}, {"measured", measured_.timeline}});
}

/// What a later phase would be refused for: better now than behind the steps before it. And what phases of documents
/// train on.
Status Trainer::check_lengths() {
  if (run_.follows_phase) return success();
  const RunConfig& c = run_.config;
  for (const std::size_t i : phases_apart(c, static_cast<std::size_t>(c.phase))) {
    const RunConfig at = at_phase(c, i);
    const bool is_now = static_cast<int>(i) == c.phase;
    Batches later;
    if (!is_now) {
      SLUICE_ASSIGN(later, Batches::for_training(tokens_, at, run_.workload.documents));
      SLUICE_ASSIGN(const auto sets, open_eval_sets(at, run_.model.config, run_.workload.documents, later));
      static_cast<void>(sets);
    }
    const Batches& batches = is_now ? batches_ : later;
    if (batches.rows() != nullptr) observer_.note(shown_documents(at, batches));
  }
  SLUICE_ASSIGN(const std::string left_out, shown_left_out(c, batches_));
  if (!left_out.empty()) observer_.note(left_out);
  return success();
}

Result<TrainResult> Trainer::run(const std::atomic<bool>& stop) {
  TrainResult result;
  SystemCpuClock clock;
  const CpuReading begun = clock.read();
  const bool long_steps = 3 * run_.step_seconds() > stop_patience_seconds;
  std::optional<Impatience> impatience;
  if (life_.journal()) engine().states().set_stop(&stop);
  // A sum of the library's own can not be called off: such a run stops between steps.
  const bool may_cancel =
      run_.workload.sums != RankSums::native || !run_.workload.exchanges || run_.workload.collects_on_device;
  if (life_.journal() && may_cancel) impatience.emplace(stop, engine().team(), long_steps ? 0 : stop_patience_seconds);
  // It is for reports alone: a run goes on without.
  const auto keep_prediction = [&] { return directory_ != nullptr ? keep_timeline(*directory_, run_, {}) : success(); };
  if (const Status kept = together_.lead(keep_prediction); !kept.ok()) observer_.note(kept.error().message);
  Status ran = complete_metrics(result);
  // Who was killed while a step wrote these states has no checkpoint of them.
  if (ran.ok() && life_.journal() && saves_beside(done_)) ran = save(done_);
  if (ran.ok()) ran = steps(stop, result);
  while (!ran.ok() && is_of_step(ran.error())) {
    SLUICE_TRY(recover(ran.error()));
    // The step before may have been committed while this one failed beside it.
    ran = complete_metrics(result);
    if (ran.ok()) ran = steps(stop, result);
  }
  if (!ran.ok()) {
    const Result<bool> stops = together_.any_says(stop.load());
    if (ran.error().code != ErrorCode::cancelled || !stops.ok() || !*stops) return kept(ran.error());
    const Status echo = engine().team().end();
    (void)echo;
    return interrupted(result, "what was under way is given up: it would have taken too long");
  }
  reports_.compare_with_prediction(measured_.ahead ? Timeline{} : measured_.timeline,
                                   !disturbance(begun, clock.read(), clock.cores()).empty());
  if (done_ < phase_.last) return interrupted(result, "the steps under way are finished");
  if (done_ < run_.config.steps) {
    SLUICE_ASSIGN(const bool stops, together_.any_says(stop.load()));
    return stops ? interrupted(result, "the steps under way are finished") : end_phase(result);
  }
  result.steps = done_;
  result.saves = life_.saves();
  if (const Status completed = complete(result); !completed.ok()) {
    SLUICE_ASSIGN(const bool stops, together_.any_says(stop.load()));
    if (completed.error().code != ErrorCode::cancelled || !stops) return kept(completed.error());
    return interrupted(result, "all steps are done; what is left is evaluation and the model");
  }
  if (const Status traced = agree(world_, write_timelines()); !traced.ok())
    return fault(traced.error().message + "; the run itself is complete");
  return result;
}

Result<TrainResult> Trainer::interrupted(TrainResult result, const std::string& how) {
  if (life_.journal()) {
    SLUICE_ASSIGN(done_, together_.smallest(static_cast<std::int64_t>(life_.journal()->committed())));
  }
  result.steps = done_;
  result.saves = life_.saves();
  result.interrupted = true;
  result.resumable = directory_ != nullptr;
  observer_.note(how);
  SLUICE_TRY(life_.save_state(done_));
  if (const Status traced = write_timelines(); !traced.ok()) observer_.note(traced.error().message);
  return result;
}

/// The states are of this step, and the next phase finds them: committed, or saved.
Result<TrainResult> Trainer::end_phase(TrainResult result) {
  SLUICE_TRY(life_.save_state(done_));
  result.steps = done_;
  result.saves = life_.saves();
  result.phase_ended = true;
  if (const Status traced = write_timelines(); !traced.ok()) observer_.note(traced.error().message);
  return result;
}

/// Ends the steps that were released, after something else failed than they.
Status Trainer::settle() {
  if (life_.journal()) {
    const Status ended = engine().team().end();
    return !ended.ok() && is_of_step(ended.error()) ? success() : ended;  // a step that nobody needs any more
  }
  while (training_ && collected_ < released_) {
    const Result<StepRecord> record = collect(std::max(collected_ + 1, first_));
    if (!record.ok()) break;  // ending says what it was
  }
  SLUICE_TRY(end_training());
  done_ = std::max(done_, released_);
  return success();
}

/// What failed need not take the steps along that are done: where the states are whole the run can go on.
Error Trainer::kept(const Error& reason) {
  const Error failed{reason.code == ErrorCode::bad_request ? ErrorCode::fault : reason.code, reason.message};
  const bool settled = !broken_ && agree(world_, settle()).ok();
  const std::string launcher = world_.processes() > 1 ? "mpirun -n " + std::to_string(world_.processes()) + " " : "";
  const std::string go_on = "when this is mended, go on with: " + launcher + "sluice train --run ";
  if (world_.has_lost_a_process() && life_.journal())
    return with(failed, "what was committed is kept; " + go_on + directory_->path() + " --resume");
  if (!settled || directory_ == nullptr) return failed;
  if (life_.journal()) {
    const auto committed = together_.smallest(static_cast<std::int64_t>(life_.journal()->committed()));
    if (!committed.ok()) return failed;
    done_ = *committed;
  }
  if (life_.journal() == nullptr && done_ == 0) return failed;
  if (life_.journal() == nullptr)
    if (const Status saved = life_.save_state(done_); !saved.ok())
      return with(failed, "and the states can not be saved: " + saved.error().message);
  return with(failed,
              "the states of step " + std::to_string(done_) + " are kept; " + go_on + directory_->path() + " --resume");
}

/// All steps are done: the model, the result, and then nothing of the states is needed any more.
Status Trainer::complete(TrainResult& result) {
  if (!eval_) {
    SLUICE_ASSIGN(eval_, evaluate());
  }
  result.eval = *eval_;
  if (directory_ == nullptr) return success();
  observer_.note("saving the model to " + directory_->path());
  SLUICE_TRY(engine().states().lead_visits(
      [&] { return export_model(engine(), run_, directory_->path(), directory_->companions()); }));
  SLUICE_ASSIGN(const std::uint64_t hash, engine().states().state_hash());
  result.state_hash = hash;
  const auto publish = [&]() -> Status {
    SLUICE_TRY(reports_.sync());
    SLUICE_TRY(directory_->publish_result(to_json(result)));
    return directory_->remove_state();
  };
  SLUICE_TRY(together_.lead(publish));
  if (run_.workload.durable) engine().discard_swap();
  return success();
}

}  // namespace sluice
