// Where a run begins, and what is kept of it.
#include "src/train/run/lifecycle.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "sluice/size.h"
#include "src/device/profile.h"
#include "src/train/request/decided.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/alike.h"
#include "src/train/run/companions.h"
#include "src/train/run/metrics_file.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/model_writer.h"
#include "src/train/states/save_checkpoint.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

std::string seconds_since(Clock::time_point began) {
  return format_seconds(std::chrono::duration<double>(Clock::now() - began).count());
}

constexpr std::size_t watched_ops_max = 1u << 17;

std::uint64_t random_id() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

/// Descriptions, metrics and what a file system needs itself.
constexpr std::uint64_t small_files_bytes = 1u << 20;

}  // namespace

Lifecycle::Lifecycle(const Prepared& run, TrainObserver& observer, RunDirectory* directory,
                     const std::atomic<bool>* stop, World& world, Together& together, StepReports& reports)
    : run_(run),
      observer_(observer),
      directory_(directory),
      stop_(stop),
      world_(world),
      together_(together),
      reports_(reports) {}

Lifecycle::~Lifecycle() {
  if (!saving_) return;
  // Steps may still write what is given up here.
  engine_->team().stop({ErrorCode::cancelled, "the run has ended"});
  static_cast<void>(engine_->team().end());
  drop_save();
}

Status Lifecycle::commit(RankId rank, const StepParams& params, std::uint8_t parity) {
  return journal_ ? journal_->commit(rank, committed_step(params), parity) : success();
}

void Lifecycle::remember(const StepResult& result) {
  if (!journal_) recent_[result.step % recent_.size()] = result;
}

Status Lifecycle::open(StepSource& source, const DataMark& data) {
  source_ = &source;
  data_ = data;
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

Status Lifecycle::open_engine(bool swap_exists) {
  Engine::Options options;
  // What ops take is compared with the profile; of huge plans it takes memory.
  options.record_timeline = !run_.config.trace.empty() || run_.main().ops.size() <= watched_ops_max;
  options.commit_sink = this;
  if (run_.workload.durable) options.swap_run_id = directory_->run()->id;
  options.swap_exists = swap_exists;
  options.world = &world_;
  const auto three_steps = static_cast<std::int64_t>(3 * run_.step_seconds());
  world_.set_deadline(std::chrono::seconds(std::max<std::int64_t>(run_.config.deadline_seconds, three_steps)));
  observer_.note("reserving " + std::to_string(run_.workload.ranks()) + " x device and host arenas, and the swap file");
  auto engine = Engine::create(run_, *source_, options);
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
Status Lifecycle::check_room() const {
  struct statvfs space {};
  if (directory_ == nullptr || statvfs(directory_->path().c_str(), &space) != 0) return success();
  SLUICE_ASSIGN(const ModelWriter model, ModelWriter::create(run_.model, directory_->path(), run_.workload.dtype));
  // The next phase of a durable run goes on from what is saved for it, where states do not stay.
  const bool saves_states = !run_.workload.durable || run_.states_move;
  const std::uint64_t states = saves_states ? engine_->states().checkpoint_bytes() : 0;
  // What is saved lies beside what was saved before, and beside the model, until the other is whole.
  const bool has_saved = directory_->has_saved();
  const std::uint64_t lasting = has_saved ? std::max(model.data_bytes(), states) : model.data_bytes() + states;
  const std::uint64_t needed = lasting + companion_bytes(directory_->companions()) + small_files_bytes;
  std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  // It goes before the first step.
  if (run_.workload.durable && has_saved) free += directory_->saved_bytes();
  if (run_.config.save_every > 0) SLUICE_TRY(check_room_for_checkpoints());
  if (needed <= free) return success();
  return bad_request("--run " + directory_->path() + ": " +
                     (states > 0
                          ? "the states of a run that is stopped or goes on to another length, and the model, take "
                          : "the model at the end of the run takes ") +
                     format_bytes(needed) + ", and " + format_bytes(free) +
                     " are free there; make room, or choose another directory for a new run");
}

/// A checkpoint lies beside the ones that are kept until it is whole.
Status Lifecycle::check_room_for_checkpoints() const {
  const RunConfig& c = run_.config;
  const std::string parent = checkpoints_path(c);
  SLUICE_TRY(check_checkpoints_of(&*directory_->run(), parent));
  const std::uint64_t each = engine_->states().checkpoint_bytes();
  const auto there = list_checkpoints(parent);
  const std::uint64_t has = there.ok() ? there->size() : 0;
  const std::uint64_t most = c.keep > 0 ? static_cast<std::uint64_t>(c.keep) + 1 : has + 1;
  return check_checkpoint_room(parent, most > has ? each * (most - has) : each);
}

RestoreListener Lifecycle::listener() {
  return {[this](const std::string& text) { observer_.note(text); },
          [this](const std::string& what) { return watch(what); }};
}

States::Watch Lifecycle::watch(const std::string& what) {
  observer_.note(what);
  return [this, what](double fraction) { return pass_on(what, fraction); };
}

Status Lifecycle::pass_on(const std::string& what, double fraction) {
  observer_.progress(what, fraction);
  if (stop_ == nullptr || !stop_->load()) return success();
  const bool goes_on =
      directory_ != nullptr && directory_->run() && (directory_->has_commits() || directory_->has_saved());
  return Error{ErrorCode::cancelled,
               "stopped by a signal while " + what +
                   (!goes_on       ? "; nothing has been trained yet: the same command starts over"
                    : has_changed_ ? "; what was changed of the run stays so, also for a plain --resume: the "
                                     "same command goes on"
                                   : "; the run is as it was: the same command goes on")};
}

/// A new run: its directory first, so that a swap file that is left behind has an owner.
Status Lifecycle::begin_run() {
  SLUICE_ASSIGN(const bool is_new, together_.leader_says([&] { return directory_ != nullptr && !directory_->run(); }));
  const auto begin_directory = [&]() -> Status {
    if (!is_new) return keep_beside();
    RunDescription description = describe();
    if (const std::string& from = run_.config.restore; !from.empty()) {
      SLUICE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(from));
      description.restored_step = checkpoint.manifest().step;
    }
    SLUICE_TRY(directory_->begin(description));
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
Status Lifecycle::keep_beside() {
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

Status Lifecycle::fill_new() {
  const RunConfig& c = run_.config;
  if (!c.restore.empty()) return fill_restored();
  SLUICE_TRY(open_engine(false));
  SLUICE_TRY(together_.lead([&] { return reports_.begin(); }));
  const std::string what = c.init.empty() ? "initialising random weights" : "reading weights from " + c.init;
  const Clock::time_point began = Clock::now();
  SLUICE_TRY(agree(world_, engine_->states().initialize(c.init, c.seed, watch(what))));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  observer_.note("the weights are in place after " + seconds_since(began));
  return run_.workload.durable ? commit_initial(0, {}) : success();
}

/// A checkpoint says how far its data has been read: as a number of steps, of the same data.
Status Lifecycle::check_restored(const SavedRun& saved) const {
  if (saved.run.data_hash == data_.hash && saved.run.data_tokens == data_.tokens) return success();
  return bad_request("--data " + run_.config.data + " is not the data that " + run_.config.restore +
                     " was trained on, which was " + saved.run.config.data +
                     "; give that, wherever it is, or begin anew from its weights (checkpoint export, --init)");
}

/// The states of a checkpoint, with the results of its last steps.
Status Lifecycle::fill_restored() {
  const RunConfig& c = run_.config;
  SLUICE_TRY(open_engine(false));
  SLUICE_TRY(together_.lead([&] { return reports_.begin(); }));
  std::uint64_t step = 0;
  std::vector<StepResult> results;
  Result<Checkpoint> checkpoint = Checkpoint::open(c.restore);
  SLUICE_TRY(agree(world_, checkpoint.ok() ? success() : Status(checkpoint.error())));
  SLUICE_TRY(check_alike(world_, "what --restore names", mark_of(checkpoint->manifest())));
  const auto load = [&]() -> Status {
    step = checkpoint->manifest().step;
    // Who else writes checkpoints says nothing of data.
    if (const auto saved = saved_run_from_json(checkpoint->manifest().run); saved.ok()) {
      if (data_.hash != 0) SLUICE_TRY(check_restored(*saved));
      results = saved->results;
    }
    SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(run_));
    return engine_->states().load_checkpoint(*checkpoint, queue, !c.reset_optimizer,
                                             watch("reading the states of " + checkpoint->path()));
  };
  const Clock::time_point began = Clock::now();
  SLUICE_TRY(agree(world_, load()));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  observer_.note("the states are in place after " + seconds_since(began));
  done_ = static_cast<std::int64_t>(step);
  for (const StepResult& result : results) recent_[result.step % recent_.size()] = result;
  if (run_.workload.durable) {
    remember_skipped(step, results);
    SLUICE_TRY(commit_initial(step, results));
  }
  observer_.note("going on after step " + std::to_string(step) + " of " + std::to_string(c.steps));
  return success();
}

/// The states as they are become the first commit of a layout. The leader's records take their names last: where they
/// are, all are.
Status Lifecycle::commit_initial(std::uint64_t step, const std::vector<StepResult>& results) {
  const RankRange here = world_.here();
  const auto commit_here = [&]() -> Status {
    for (RankId r = here.first; r < here.end(); ++r) SLUICE_TRY(engine_->store(r)->sync());
    SLUICE_ASSIGN(journal_, open_journal(*directory_, run_, *engine_, true, listener()));
    for (const StepResult& result : results) journal_->add(result);
    for (RankId r = here.first; r < here.end(); ++r) SLUICE_TRY(journal_->commit(r, step, engine_->store(r)->parity()));
    return world_.leads() ? success() : journal_->publish();
  };
  SLUICE_TRY(agree(world_, commit_here()));
  return together_.lead([&] { return journal_->publish(); });
}

RunDescription Lifecycle::describe() const {
  const Workload& w = run_.workload;
  RunDescription d;
  d.id = random_id();
  d.machine = machine_id();
  d.config = with_decisions(run_);
  d.model_hash = model_hash(run_, run_.workload.dtype);
  d.data_tokens = data_.tokens;
  d.data_hash = data_.hash;
  d.schedule = run_.search.schedule;
  d.block_bytes = w.block_bytes;
  d.stripe_weights = run_.profile.drive.stripe_weights;
  d.layout = durable_layout(run_);
  d.device = run_.workload.device;
  d.kernels = run_.kernels;
  return d;
}

/// Of a step of this process or of those before, if it is one of the last.
std::optional<StepResult> Lifecycle::find_result(std::int64_t step) const {
  const auto number = static_cast<std::uint64_t>(step);
  if (journal_) return journal_->find(number);
  const StepResult& result = recent_[number % recent_.size()];
  return step > 0 && result.step == number ? std::optional(result) : std::nullopt;
}

/// The states of step `done` as a checkpoint in `parent`.
Status Lifecycle::save_to(const std::string& parent, std::int64_t done, const States::Watch& watch) {
  SLUICE_TRY(
      save_run(engine_->states(), &world_, run_, saved_run(done), parent, static_cast<std::uint64_t>(done), watch));
  return success();
}

/// What is known of the run when step `done` has ended.
SavedRun Lifecycle::saved_run(std::int64_t done) const {
  SavedRun saved{*directory_->run(), {}};
  const auto ring = static_cast<std::int64_t>(recent_.size());
  for (std::int64_t step = std::max<std::int64_t>(1, done - ring + 1); step <= done; ++step)
    if (const std::optional<StepResult> known = find_result(step)) saved.results.push_back(*known);
  return saved;
}

/// Older ones go when the new one is on the drive.
Status Lifecycle::prune(const std::string& parent, std::size_t keep) {
  return together_.lead([&]() -> Status {
    const auto pruned = keep > 0 ? prune_checkpoints(parent, keep) : std::vector<std::string>();
    return pruned.ok() ? success() : Status(pruned.error());
  });
}

/// What the next process goes on from, where steps are not durable.
Status Lifecycle::save_state(std::int64_t done) {
  if (journal_ || directory_ == nullptr || saved_ == done) return success();
  const std::string what = "saving the states to " + directory_->saved_path();
  observer_.note(what);
  SLUICE_TRY(save_to(directory_->saved_path(), done, [&](double fraction) {
    observer_.progress(what, fraction);
    return success();
  }));
  SLUICE_TRY(prune(directory_->saved_path(), 1));
  saved_ = done;
  return success();
}

/// Whether anything in the directory is another run's. Opens all that is there: once, where nothing of it goes away.
Status Lifecycle::check_parent(const std::string& parent, std::int64_t step, bool prunes) {
  SLUICE_TRY(together_.lead([&]() -> Status {
    std::error_code ignored;
    const std::string path = parent + "/" + checkpoint_name(static_cast<std::uint64_t>(step));
    const bool removes = prunes || std::filesystem::exists(path, ignored);
    return parent == checked_parent_ && !removes ? success() : check_checkpoints_of(&*directory_->run(), parent);
  }));
  checked_parent_ = parent;
  return success();
}

Status Lifecycle::save_checkpoint(std::int64_t step, const std::string& parent, int keep) {
  SLUICE_TRY(check_parent(parent, step, keep > 0));
  // Its states are those that the run went on from: it was killed before the step's line.
  SLUICE_ASSIGN(const bool is_there, together_.leader_says([&] {
    return step == done_ && Checkpoint::open(parent + "/" + checkpoint_name(static_cast<std::uint64_t>(step))).ok();
  }));
  if (is_there) {
    SLUICE_TRY(together_.lead([&] { return name_latest(parent, static_cast<std::uint64_t>(step)); }));
    return prune(parent, static_cast<std::size_t>(keep));
  }
  const Clock::time_point began = Clock::now();
  SLUICE_TRY(save_to(parent, step, watch("saving step " + std::to_string(step) + " to " + parent)));
  note_saved(step, parent, began, false);
  return prune(parent, static_cast<std::size_t>(keep));
}

void Lifecycle::note_saved(std::int64_t step, const std::string& parent, Clock::time_point began, bool shared) {
  observer_.note(fmt::format("step {} is saved: {}{} in {}", step, format_bytes(engine_->states().checkpoint_bytes()),
                             shared ? " shared with the swap file" : "", seconds_since(began)));
  if (parent != checkpoints_path(run_.config)) return;
  ++saves_;
  if (!journal_) saved_ = step;
}

Status Lifecycle::begin_save(std::int64_t step, const std::string& parent, const std::vector<std::uint8_t>& slots) {
  SLUICE_TRY(check_parent(parent, step, run_.config.keep > 0));
  SLUICE_ASSIGN(const CheckpointRequest request, request_of(run_, parent, static_cast<std::uint64_t>(step)));
  SLUICE_ASSIGN(auto save, CheckpointSave::begin(engine_->states(), &world_, request));
  const RankId first = world_.here().first;
  for (RankId r = first; r < world_.here().end(); ++r)
    engine_->saver(r).open(save->writer(r), slots.empty() ? std::nullopt : std::optional(slots[r - first]));
  saving_ = Saving{step, parent, Clock::now(), std::move(save), {}};
  observer_.note("saving step " + std::to_string(step) + " to " + parent + " while training goes on");
  return success();
}

void Lifecycle::describe_save(std::int64_t step) {
  if (saving() == step && step > 0) saving_->run = to_json_text(saved_run(step));
}

Status Lifecycle::finish_save(int keep) {
  SLUICE_CHECK(saving_ && !saving_->run.empty(), "(step %lld)", static_cast<long long>(saving()));
  Status own = success();
  bool shared = false;
  for (RankId r = world_.here().first; r < world_.here().end(); ++r) {
    shared |= engine_->saver(r).shares_slot();
    if (own.ok()) own = engine_->saver(r).share_slot();
    if (const Status closed = engine_->saver(r).close(); own.ok()) own = closed;
  }
  const Saving saving = *std::exchange(saving_, std::nullopt);
  const Result<std::string> published = saving.save->publish(own, saving.run);
  if (!published.ok()) return published.error();
  note_saved(saving.step, saving.parent, saving.began, shared);
  return prune(saving.parent, static_cast<std::size_t>(keep));
}

void Lifecycle::drop_save() {
  if (!saving_) return;
  for (RankId r = world_.here().first; r < world_.here().end(); ++r) static_cast<void>(engine_->saver(r).close());
  saving_.reset();
}

}  // namespace sluice
