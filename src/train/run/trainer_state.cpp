// Where a run begins, stands and ends: new states, or those that were committed or saved; metrics without gaps.
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "sluice/size.h"
#include "src/device/profile.h"
#include "src/comm/in_process.h"
#include "src/train/run/alike.h"
#include "src/train/run/companions.h"
#include "src/train/run/metrics_file.h"
#include "src/train/run/new_files.h"
#include "src/train/run/other_ranks.h"
#include "src/train/run/trainer.h"
#include "src/train/states/export.h"
#include "src/train/states/model_writer.h"
#include "src/train/states/restore.h"
#include "src/train/states/snapshot.h"

namespace sluice {
namespace {

constexpr std::size_t watched_ops_max = 1u << 17;

std::uint64_t random_id() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

/// Descriptions, metrics and what a file system needs itself.
constexpr std::uint64_t small_files_bytes = 1u << 20;

Error with(const Error& error, const std::string& what) { return {error.code, error.message + "; " + what}; }

}  // namespace

Trainer::Trainer(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
                 World* world)
    : run_(run),
      observer_(observer),
      directory_(directory),
      stop_(stop),
      own_world_(world == nullptr ? std::make_unique<InProcessWorld>(run.workload.ranks()) : nullptr),
      world_(world == nullptr ? *own_world_ : *world),
      together_(world_, directory) {}

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
  SLUICE_TRY(t->open_state());
  tokens_made.keep();
  t->first_ = t->done_ + 1;
  SLUICE_TRY(t->open_metrics());
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
                  return pass_on("tokenizing " + c.data, fraction);
                }));
  SLUICE_ASSIGN(batches_, Batches::create(tokens_, c.sequence, c.seed, run_.workload.documents, c.eval_split));
  SLUICE_ASSIGN(eval_sets_, open_eval_sets(c, run_.model.config, run_.workload.documents, batches_, note));
  observer_.note(shown(c, batches_, eval_sets_));
  metrics_path_ = metrics_path(c);
  if (directory_ != nullptr || !world_.is_alone()) {
    SLUICE_ASSIGN(data_hash_, tokens_.hash());
  }
  return success();
}

Status Trainer::open_state() {
  SLUICE_TRY(together_.lead([&] { return check_metrics(run_.config, directory_); }));
  if (directory_ == nullptr || !directory_->run()) return begin_run();
  const auto check = [&]() -> Status {
    SLUICE_TRY(check_same(*directory_->run()));
    SLUICE_TRY(directory_->check_place());
    if (const std::string moved = directory_->moved(); !moved.empty()) observer_.note(moved);
    return keep_beside();
  };
  SLUICE_TRY(together_.lead(check));
  SLUICE_TRY(continue_run());
  return together_.lead([&] {
    tell_changes();
    return directory_->update(run_.config, done_, run_.workload.device, run_.kernels);
  });
}

/// From what it has left; nothing of that is touched yet.
Status Trainer::continue_run() {
  const bool durable = run_.workload.durable;
  SLUICE_ASSIGN(const bool is_kept,
                together_.leader_says([&] { return directory_->has_snapshot() || (durable && directory_->has_commits()); }));
  if (is_kept) {
    SLUICE_ASSIGN(const bool is_laid_out_anew, together_.leader_says([&] { return has_other_ranks(); }));
    if (is_laid_out_anew) SLUICE_TRY(together_.lead([&] { return lay_out_anew(); }));
    // A durable run has a snapshot while it is laid out for another number of ranks.
    SLUICE_ASSIGN(const bool has_snapshot, together_.leader_says([&] { return directory_->has_snapshot(); }));
    return has_snapshot ? continue_snapshot() : continue_durable();
  }
  const auto start_over = [&]() -> Status {
    // A step's line is written after the first commit: where there is one, there were records.
    std::error_code ignored;
    if (durable && std::filesystem::is_regular_file(metrics_path_, ignored) &&
        std::filesystem::file_size(metrics_path_, ignored) > 0)
      return bad_request("--run " + directory_->path() + " holds half a run: " + metrics_path_ + " has steps, and " +
                         directory_->commit_path(0) +
                         " is missing; put it back, or start a new run in another directory");
    observer_.note(directory_->path() + ": the run was cut short before anything of it was kept: starting over");
    SLUICE_TRY(directory_->remove_state());
    if (durable) SLUICE_TRY(remove_swap_files(run_.workload.ranks()));
    return has_other_ranks() ? directory_->lay_out(describe(), 0) : success();
  };
  SLUICE_TRY(together_.lead(start_over));
  return begin_run();
}

Status Trainer::open_engine(bool swap_exists) {
  Engine::Options options;
  // What ops take is compared with the profile; of huge plans it takes memory.
  options.record_timeline = !run_.config.trace.empty() || run_.main.ops.size() <= watched_ops_max;
  options.commit_sink = this;
  if (run_.workload.durable) options.swap_run_id = directory_->run()->id;
  options.swap_exists = swap_exists;
  options.world = &world_;
  const auto three_steps = static_cast<std::int64_t>(3 * run_.predicted.step_seconds);
  world_.set_deadline(std::chrono::seconds(std::max<std::int64_t>(run_.config.deadline_seconds, three_steps)));
  observer_.note("reserving " + std::to_string(run_.workload.ranks()) + " x device and host arenas, and the swap file");
  auto engine = Engine::create(run_, *this, options);
  if (engine.ok()) engine_ = *std::move(engine);
  const Status made = engine_ ? success() : Status(engine.error());
  if (const Status agreed = agree(world_, made); !agreed.ok()) {
    if (engine_ && !swap_exists) engine_->discard_swap();
    engine_.reset();
    return agreed;
  }
  if (!engine_->storage().empty()) observer_.note("drive tier: " + engine_->storage());
  return together_.lead([&] { return check_room(); });
}

/// What the end of the run, or a stop, writes to the directory: better missed now than after all steps.
Status Trainer::check_room() const {
  struct statvfs space {};
  if (directory_ == nullptr || statvfs(directory_->path().c_str(), &space) != 0) return success();
  SLUICE_ASSIGN(const ModelWriter model, ModelWriter::create(run_.model, directory_->path(), run_.workload.dtype));
  const std::uint64_t states = run_.workload.durable ? 0 : engine_->states().state_stream_bytes();
  // A snapshot lies beside the one before, and beside the model, until the other is whole.
  const std::uint64_t lasting =
      directory_->has_snapshot() ? std::max(model.data_bytes(), states) : model.data_bytes() + states;
  const std::uint64_t needed = lasting + companion_bytes(directory_->companions()) + small_files_bytes;
  std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  // It goes before the first step.
  std::error_code ignored;
  if (run_.workload.durable && directory_->has_snapshot())
    free += std::filesystem::file_size(directory_->snapshot_path(), ignored);
  if (needed <= free) return success();
  return bad_request("--run " + directory_->path() + ": " +
                     (states > 0 ? "the states of a run that is stopped, and the model, take "
                                 : "the model at the end of the run takes ") +
                     format_bytes(needed) + ", and " + format_bytes(free) +
                     " are free there; make room, or choose another directory for a new run");
}

States::Watch Trainer::watch(const std::string& what) {
  observer_.note(what);
  return [this, what](double fraction) { return pass_on(what, fraction); };
}

Status Trainer::pass_on(const std::string& what, double fraction) {
  observer_.progress(what, fraction);
  if (stop_ == nullptr || !stop_->load()) return success();
  const bool goes_on =
      directory_ != nullptr && directory_->run() && (directory_->has_commits() || directory_->has_snapshot());
  return Error{ErrorCode::cancelled, "stopped by a signal while " + what +
                                         (goes_on ? "; the run is as it was: the same command goes on"
                                                  : "; nothing has been trained yet: the same command starts over")};
}

/// A new run: its directory first, so that a swap file that is left behind has an owner.
Status Trainer::begin_run() {
  SLUICE_ASSIGN(const bool is_new, together_.leader_says([&] { return directory_ != nullptr && !directory_->run(); }));
  const auto begin_directory = [&]() -> Status {
    if (is_new) SLUICE_TRY(directory_->begin(describe()));
    return keep_beside();
  };
  const auto begin = [&]() -> Status {
    SLUICE_TRY(together_.lead(begin_directory));
    return fill_new();
  };
  const Status filled = begin();
  // What can not be had now leaves nothing.
  if (filled.ok() || filled.error().code != ErrorCode::bad_request) return filled;
  if (engine_ && run_.workload.durable) engine_->discard_swap();
  engine_.reset();
  if (is_new && world_.leads() && directory_->run()) SLUICE_TRY(directory_->forget());
  return filled;
}

/// The tokenizer and what else is to lie beside the model, as they are now.
Status Trainer::keep_beside() {
  std::error_code ignored;
  if (directory_ == nullptr || std::filesystem::exists(directory_->companions() + "/config.json", ignored))
    return success();
  const std::string source = source_directory(run_.config);
  if (!source.empty() && !std::filesystem::exists(source, ignored)) {
    observer_.note(source + ", which the run began from, is gone: the model will have no tokenizer beside it");
    return success();
  }
  SLUICE_ASSIGN(const auto format, recognize_tokens(run_.config.data));
  return keep_companions(run_.config, run_.model.config, !format, directory_->companions());
}

Status Trainer::fill_new() {
  const RunConfig& c = run_.config;
  SLUICE_TRY(open_engine(false));
  SLUICE_TRY(together_.lead([&]() -> Status {
    if (metrics_path_.empty()) return success();
    SLUICE_ASSIGN(metrics_, LineWriter::open(metrics_path_, false));
    return success();
  }));
  const std::string what = c.init.empty() ? "initialising random weights" : "reading weights from " + c.init;
  const Clock::time_point began = Clock::now();
  SLUICE_TRY(agree(world_, engine_->states().initialize(c.init, c.seed, watch(what))));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  observer_.note("the weights are in place after " +
                 format_seconds(std::chrono::duration<double>(Clock::now() - began).count()));
  return run_.workload.durable ? commit_initial(0, {}) : success();
}

RestoreListener Trainer::listener() {
  return {[this](const std::string& text) { observer_.note(text); },
          [this](const std::string& what) { return watch(what); }};
}

/// The states as they are become the first commit of a layout. The leader's records take their names last: where they
/// are, all are.
Status Trainer::commit_initial(std::uint64_t step, const std::vector<StepResult>& results) {
  const RankRange here = world_.here();
  const auto commit_here = [&]() -> Status {
    for (RankId r = here.first; r < here.end(); ++r) SLUICE_TRY(engine_->store(r)->sync());
    SLUICE_ASSIGN(journal_, open_journal(*directory_, run_, *engine_, true, listener()));
    for (const StepResult& result : results) journal_->add(result);
    for (RankId r = here.first; r < here.end(); ++r)
      SLUICE_TRY(journal_->commit(r, step, engine_->store(r)->parity()));
    return world_.leads() ? success() : journal_->publish();
  };
  SLUICE_TRY(agree(world_, commit_here()));
  return together_.lead([&] { return journal_->publish(); });
}

Status Trainer::continue_durable() {
  // For other ranks, by who was killed.
  if (world_.leads()) remove_abandoned_files(directory_->snapshot_path());
  SLUICE_TRY(open_engine(true));
  const auto open_records = [&]() -> Status {
    SLUICE_ASSIGN(journal_, open_journal(*directory_, run_, *engine_, false, listener()));
    return journal_->steps().empty() ? success() : check_not_done(journal_->steps().front());
  };
  SLUICE_TRY(agree(world_, open_records()));
  const auto restored = restore_newest(*directory_, *engine_, *journal_, listener());
  if (!restored.ok()) return in_order_of_drives(restored.error());
  // Before the first step: what a rank had committed alone is made again, and may be with other options.
  SLUICE_TRY(agree(world_, journal_->forget_newer()));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  const std::uint64_t step = *restored;
  done_ = static_cast<std::int64_t>(step);
  std::vector<StepResult> results;
  for (std::uint64_t s = step; s > 0 && journal_->find(s); --s) results.insert(results.begin(), *journal_->find(s));
  remember_skipped(step, results);
  observer_.note(directory_->path() + ": continuing after step " + std::to_string(step) + " of " +
                 std::to_string(run_.config.steps));
  return success();
}

Status Trainer::continue_snapshot() {
  // The swap file that is going to be made takes the place of one whose states may be whole too.
  SLUICE_TRY(together_.lead([&]() -> Status {
    if (!run_.workload.durable) return success();
    const auto whole = check_snapshot();
    return whole.ok() ? success() : Status(whole.error());
  }));
  SLUICE_TRY(open_engine(false));
  const auto loaded = load_snapshot(directory_->snapshot_path(), directory_->run()->id, *engine_,
                                    watch("reading the states that were saved"));
  SLUICE_TRY(agree(world_, loaded.ok() ? check_not_done(*loaded) : Status(loaded.error())));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  const std::uint64_t step = *loaded;
  done_ = saved_ = static_cast<std::int64_t>(step);
  const std::vector<StepResult> results = snapshot_results(directory_->snapshot_path(), engine_->states().state_stream_bytes());
  for (const StepResult& result : results) recent_[result.step % recent_.size()] = result;
  if (run_.workload.durable) {
    remember_skipped(step, results);
    SLUICE_TRY(commit_initial(step, results));
    const auto remove_old = [&]() -> Status {
      SLUICE_TRY(directory_->remove_commits(run_.workload.ranks()));
      SLUICE_TRY(remove_swap_files(run_.workload.ranks()));
      return directory_->remove_snapshot();
    };
    SLUICE_TRY(together_.lead(remove_old));
  }
  observer_.note(directory_->path() + ": continuing after step " + std::to_string(step) + " of " +
                 std::to_string(run_.config.steps));
  return success();
}

/// Of more ranks that the run had before: there were at most as many as it has lots.
Status Trainer::remove_swap_files(RankId from) const {
  const Workload& w = run_.workload;
  SwapOptions swap;
  swap.directories = run_.config.nvme;
  for (int rank = from; rank < w.lots * w.ranks(); ++rank) {
    swap.name = swap_name(directory_->run()->id, static_cast<RankId>(rank));
    SLUICE_TRY(SwapFile::remove(swap));
  }
  return success();
}

/// For this number of ranks, from what the run has left with another. Nothing is changed before its states are whole in
/// the snapshot.
Status Trainer::lay_out_anew() {
  std::uint64_t step = 0;
  const bool was_there = directory_->has_snapshot();
  if (was_there) {
    SLUICE_ASSIGN(step, check_snapshot());
  } else {
    SLUICE_ASSIGN(step, save_for_other_ranks(*directory_, run_.config, listener()));
  }
  if (const Status sound = check_not_done(step); !sound.ok()) {
    // One that was there may be all that there is of the run.
    if (!was_there) SLUICE_TRY(directory_->remove_snapshot());
    return sound;
  }
  done_ = static_cast<std::int64_t>(step);
  tell_changes();
  return directory_->lay_out(describe(), done_);
}

/// Reads it, ahead of anything that takes away what else there is.
Result<std::uint64_t> Trainer::check_snapshot() {
  SLUICE_ASSIGN(const auto on_paper, Engine::open_states(run_, std::nullopt));
  return verify_snapshot(directory_->snapshot_path(), directory_->run()->id, on_paper->states().state_stream_bytes(),
                         watch("verifying the states that were saved"));
}

/// How many in a row have been skipped up to this step, of the last results.
void Trainer::remember_skipped(std::uint64_t step, const std::vector<StepResult>& results) {
  for (auto result = results.rbegin(); result != results.rend() && result->step == step && result->skipped != 0;
       ++result, --step)
    skip_.insert(static_cast<std::int64_t>(step));
}

RunDescription Trainer::describe() const {
  const Workload& w = run_.workload;
  RunDescription d;
  d.id = random_id();
  d.machine = machine_id();
  d.config = run_.config;
  // What was left open is decided now: another time it would be decided otherwise.
  d.config.durable = w.durable ? Durable::on : Durable::off;
  d.config.threads = w.threads;
  d.config.lots = w.lots * w.ranks();
  const auto budget = [&](Tier t) { return w.budget_bytes[static_cast<std::size_t>(t)]; };
  if (d.config.device_memory == 0) d.config.device_memory = budget(Tier::device);
  const auto ranks = static_cast<std::uint64_t>(ranks_of_machine(run_.config));
  if (d.config.host_memory == 0) d.config.host_memory = budget(Tier::host) * ranks;
  if (d.config.nvme_space == 0 && !d.config.nvme.empty()) d.config.nvme_space = budget(Tier::nvme) * ranks;
  d.model_hash = model_hash(run_);
  d.data_tokens = tokens_.count();
  d.data_hash = data_hash_;
  d.schedule = run_.search.schedule;
  d.block_bytes = w.block_bytes;
  d.stripe_weights = run_.profile.drive.stripe_weights;
  d.layout = durable_layout(run_.main);
  d.device = run_.workload.device;
  d.kernels = run_.kernels;
  return d;
}

Status Trainer::check_same(const RunDescription& run) const {
  const std::string where = directory_->path();
  SLUICE_TRY(has_other_ranks() ? check_same_model(*directory_, run_) : check_same_states(*directory_, run_));
  if (run.data_tokens != tokens_.count() || run.data_hash != data_hash_)
    return bad_request(where + ": " + run_.config.data + " is not the data that the run began with; " +
                       (run_.config.data == run.config.data ? "put it back"
                                                            : "give what was " + run.config.data + ", wherever it is") +
                       ", or start a new run");
  const auto tell = [&](const std::string& what) {
    observer_.note(where + ": the run " + what + "; from here on its bits need not be those of an uninterrupted run");
  };
  const auto shown = [](const std::string& device) { return device.empty() ? std::string("the CPU") : device; };
  if (run.machine != machine_id())
    tell("began on another machine (" + run.machine + ")");
  else if (run.device != run_.workload.device)
    tell("went on on " + shown(run_.workload.device) + ", before it was " + shown(run.device));
  else if (run.kernels != run_.kernels)
    tell("goes on with other kernels");
  return success();
}

Status Trainer::open_metrics() {
  written_ = done_;
  SLUICE_TRY(together_.lead([&]() -> Status {
    if (metrics_path_.empty() || metrics_.is_open()) return success();
    // Records and snapshots know the last steps.
    const auto rebuilt = [this](std::int64_t step) -> std::optional<std::string> {
      const std::optional<StepResult> known = find_result(step);
      return known ? std::optional(to_json_line(restored(*known))) : std::nullopt;
    };
    SLUICE_ASSIGN(ContinuedMetrics metrics, continue_metrics(metrics_path_, done_, rebuilt));
    for (const std::string& line : metrics.notes) observer_.note(line);
    metrics_ = std::move(metrics.writer);
    written_ = metrics.last_step;
    return success();
  }));
  SLUICE_ASSIGN(written_, together_.smallest(world_.leads() ? written_ : std::numeric_limits<std::int64_t>::max()));
  return success();
}

/// Who was killed, or went back, between a step's commit and its line left the line to this.
Status Trainer::complete_metrics(TrainResult& result) {
  std::int64_t lost = 0;
  for (std::int64_t step = written_ + 1; step <= done_; ++step) {
    const std::optional<StepResult> known = find_result(step);
    SLUICE_ASSIGN(const bool is_known, together_.leader_says([&] { return known.has_value(); }));
    if (!is_known) {
      ++lost;
      continue;
    }
    StepRecord record = restored(known.value_or(StepResult{.step = static_cast<std::uint64_t>(step)}));
    if (step == done_) SLUICE_TRY(interlude(step, record));
    SLUICE_TRY(agree(world_, write(record)));
  }
  if (lost > 0) observer_.note(metrics_path_ + ": the lines of " + std::to_string(lost) + " steps are lost");
  if (const std::optional<StepResult> known = find_result(done_)) result.loss = known->loss;
  return success();
}

/// Of a step of this process or of those before, if it is one of the last.
std::optional<StepResult> Trainer::find_result(std::int64_t step) const {
  const auto number = static_cast<std::uint64_t>(step);
  if (journal_) return journal_->find(number);
  const StepResult& result = recent_[number % recent_.size()];
  return step > 0 && result.step == number ? std::optional(result) : std::nullopt;
}

/// What the next process goes on from, where steps are not durable.
Status Trainer::save_state() {
  if (journal_ || directory_ == nullptr) return success();
  const std::string what = "saving the states to " + directory_->snapshot_path();
  observer_.note(what);
  std::vector<StepResult> results;
  for (std::int64_t step = std::max<std::int64_t>(1, done_ - static_cast<std::int64_t>(recent_.size()) + 1);
       step <= done_; ++step)
    if (const std::optional<StepResult> known = find_result(step)) results.push_back(*known);
  SLUICE_TRY(engine_->states().lead_visits([&] {
    return save_snapshot(directory_->snapshot_path(), directory_->run()->id, static_cast<std::uint64_t>(done_),
                         *engine_, results, [&](double fraction) {
                           observer_.progress(what, fraction);
                           return success();
                         });
  }));
  saved_ = done_;
  return success();
}

/// Ends the steps that were released, after something else failed than they.
Status Trainer::settle() {
  if (journal_) return engine_->team().end();
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
  const std::string launcher =
      world_.processes() > 1 ? "mpirun -n " + std::to_string(world_.processes()) + " " : "";
  const std::string go_on = "when this is mended, go on with: " + launcher + "sluice train --run ";
  if (world_.has_lost_a_process() && journal_)
    return with(failed, "what was committed is kept; " + go_on + directory_->path() + " --resume");
  if (!settled || directory_ == nullptr) return failed;
  if (journal_) {
    const auto committed = together_.smallest(static_cast<std::int64_t>(journal_->committed()));
    if (!committed.ok()) return failed;
    done_ = *committed;
  }
  if (!journal_ && done_ == 0) return failed;
  if (!journal_ && saved_ < done_)
    if (const Status saved = save_state(); !saved.ok())
      return with(failed, "and the states can not be saved: " + saved.error().message);
  return with(failed, "the states of step " + std::to_string(done_) + " are kept; " + go_on + directory_->path() +
                          " --resume");
}

/// All steps are done: the model, the result, and then nothing of the states is needed any more.
Status Trainer::complete(TrainResult& result) {
  if (!eval_) {
    SLUICE_ASSIGN(eval_, evaluate());
  }
  result.eval = *eval_;
  if (directory_ == nullptr) return success();
  observer_.note("saving the model to " + directory_->path());
  SLUICE_TRY(engine_->states().lead_visits(
      [&] { return export_model(*engine_, run_, directory_->path(), directory_->companions()); }));
  SLUICE_ASSIGN(const std::uint64_t hash, engine_->states().state_hash());
  result.state_hash = hash;
  const auto publish = [&]() -> Status {
    SLUICE_TRY(metrics_.is_open() ? metrics_.sync() : success());
    SLUICE_TRY(directory_->publish_result(to_json(result)));
    return directory_->remove_state();
  };
  SLUICE_TRY(together_.lead(publish));
  if (run_.workload.durable) engine_->discard_swap();
  return success();
}

}  // namespace sluice
