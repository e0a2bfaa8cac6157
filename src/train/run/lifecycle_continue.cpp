// Where a run goes on: at the last committed step, at the one that was saved, or for other ranks, and how otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "io/files/publish.h"
#include "kernels/cpu/gemm.h"
#include "src/device/profile.h"
#include "src/train/request/seq_schedule.h"
#include "src/train/run/lifecycle.h"
#include "src/train/run/new_files.h"
#include "src/train/run/other_blocks.h"
#include "src/train/run/saved_states.h"

namespace sluice {

/// From what it has left; nothing of that is touched yet.
Status Lifecycle::continue_run() {
  const bool durable = directory_->run()->config.durable == Durable::on;  // up to now
  SLUICE_TRY(together_.lead([&] { return check_saves(); }));
  // Whoever sees the directory late takes the leader's word.
  SLUICE_ASSIGN(const std::string layout, from_leader(world_, std::to_string(directory_->run()->layout)));
  SLUICE_TRY(agree(world_, settle_commits(std::stoull(layout))));
  SLUICE_ASSIGN(const bool is_kept, together_.leader_says([&] {
    return directory_->has_saved() || (durable && directory_->has_commits());
  }));
  if (is_kept) {
    SLUICE_TRY(together_.lead([&] { return keep_saved_here(); }));
    SLUICE_ASSIGN(const bool stays, together_.leader_says([&] { return has_other_layout() && keeps_places(); }));
    SLUICE_ASSIGN(const bool lacks_any, together_.any_says(stays && lacks_swap()));
    if (stays && !lacks_any) return plan_anew();
    SLUICE_ASSIGN(const bool is_laid_out_anew, together_.leader_says([&] { return has_other_layout(); }));
    if (is_laid_out_anew) SLUICE_TRY(together_.lead([&] { return lay_out_anew(); }));
    // A durable run has a checkpoint of its own while it is laid out otherwise. Others may see late what there is.
    SLUICE_ASSIGN(const std::string saved, from_leader(world_, world_.leads() ? directory_->newest_saved() : ""));
    if (!saved.empty()) return continue_saved(saved);
    SLUICE_TRY(continue_durable());
    return agree(world_, engine_->trim_swap());  // of plans that were refused, or killed before they were the run's
  }
  const auto start_over = [&]() -> Status {
    // A step's line is written after the first commit: where there is one, there were records.
    std::error_code ignored;
    if (durable && std::filesystem::is_regular_file(reports_.path(), ignored) &&
        std::filesystem::file_size(reports_.path(), ignored) > 0)
      return bad_request("--run " + directory_->path() + " holds half a run: " + reports_.path() + " has steps, and " +
                         directory_->commit_path(0) +
                         " is missing; put it back, or start a new run in another directory");
    observer_.note(directory_->path() + ": the run was cut short before anything of it was kept: starting over");
    SLUICE_TRY(directory_->remove_state());
    if (durable) SLUICE_TRY(remove_swap_files(directory_->run()->id, run_.config.nvme, run_.workload.ranks()));
    return has_other_layout() ? lay_out() : success();
  };
  SLUICE_TRY(together_.lead(start_over));
  return begin_run();
}

/// A step's checkpoint is there before the next step's line is.
Status Lifecycle::check_saves() const {
  const RunConfig& run = directory_->run()->config;
  if (run.durable == Durable::on || run.save_every == 0) return success();
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(reports_.path(), ignored)) return success();
  std::ifstream metrics(reports_.path());
  std::int64_t lines = 0, saved = -1;
  for (std::string line; std::getline(metrics, line);) ++lines;
  if (const std::string newest = directory_->newest_saved(); !newest.empty())
    saved = static_cast<std::int64_t>(*step_of_name(std::filesystem::path(newest).filename()));
  const std::int64_t expected = std::max<std::int64_t>(0, lines - 1) / run.save_every * run.save_every;
  if (expected == 0 || saved >= expected) return success();
  return bad_request(
      fmt::format("--run {}: its metrics have {} steps, and the checkpoint of step {} is not in {}; put it "
                  "back, or start a new run in another directory",
                  directory_->path(), lines, expected, checkpoints_path(run)));
}

/// What is going to be looked for elsewhere, or no more, is kept in the run's directory.
Status Lifecycle::keep_saved_here() {
  const RunConfig& run = directory_->run()->config;
  const std::string newest = directory_->newest_saved();
  const bool moves = has_other_layout() || checkpoints_path(run) != checkpoints_path(run_.config);
  if (newest.empty() || !moves) return success();
  return keep_saved(*directory_, newest, watch("copying " + newest + " to " + directory_->saved_path()));
}

Status Lifecycle::continue_durable() {
  // For another layout, by who was killed.
  SLUICE_TRY(together_.lead([&] { return directory_->remove_saved(); }));
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

Status Lifecycle::continue_saved(const std::string& path) {
  // The swap file that is going to be made takes the place of one whose states may be whole too.
  SLUICE_TRY(together_.lead([&]() -> Status {
    if (!run_.workload.durable) return success();
    const auto whole = check_saved();
    return whole.ok() ? success() : Status(whole.error());
  }));
  SLUICE_TRY(open_engine(false));
  std::uint64_t step = 0;
  std::vector<StepResult> results;
  RunConfig before;
  Result<Checkpoint> saved = open_saved(*directory_, path);
  SLUICE_TRY(agree(world_, saved.ok() ? success() : Status(saved.error())));
  SLUICE_TRY(check_alike(world_, "what the run goes on from", mark_of(saved->manifest())));
  const auto load = [&]() -> Status {
    step = saved->manifest().step;
    SLUICE_TRY(check_not_done(step));
    SLUICE_ASSIGN(const SavedRun run, saved_run_from_json(saved->manifest().run));
    results = run.results;
    before = run.run.config;
    SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(run_));
    return engine_->states().load_checkpoint(*saved, queue, true, watch("reading the states that were saved"));
  };
  SLUICE_TRY(agree(world_, load()));
  SLUICE_TRY(agree(world_, engine_->states().share_residents()));
  done_ = saved_ = static_cast<std::int64_t>(step);
  for (const StepResult& result : results) recent_[result.step % recent_.size()] = result;
  if (run_.workload.durable) {
    remember_skipped(step, results);
    SLUICE_TRY(commit_initial(step, results));
  }
  SLUICE_TRY(together_.lead([&] { return remove_old(before); }));
  observer_.note(directory_->path() + ": continuing after step " + std::to_string(step) + " of " +
                 std::to_string(run_.config.steps));
  return success();
}

/// What the layout before has left, which was as `before` says, where this one has all states.
Status Lifecycle::remove_old(const RunConfig& before) {
  const bool durable = run_.workload.durable;
  const std::uint64_t id = directory_->run()->id;
  const std::vector<std::string>& now = run_.config.nvme;
  SLUICE_TRY(directory_->remove_commits(durable ? run_.workload.ranks() : 0));
  SLUICE_TRY(remove_swap_files(id, now, durable ? run_.workload.ranks() : 0));
  std::vector<std::string> left;  // drives that are not used any more
  for (const std::string& drive : before.nvme)
    if (std::ranges::none_of(now, [&](const std::string& other) { return is_same_file(drive, other); }))
      left.push_back(drive);
  SLUICE_TRY(remove_swap_files(id, left, 0));
  return durable ? directory_->remove_saved() : success();
}

/// Whether the new plans find all states where those before have left them. Else they go through a checkpoint, as
/// where this version can not tell, or where a swap file is gone whose states another rank has too.
bool Lifecycle::keeps_places() const {
  const RunDescription& run = *directory_->run();
  if (!run_.workload.durable || run.config.durable != Durable::on || directory_->has_saved() ||
      !shares_alike(run.config, run_.config) || run.stripe_weights != run_.profile.drive.stripe_weights)
    return false;
  if (run.layout == durable_layout(run_)) return true;
  const auto before = prepare_as_left(*directory_, run_.config);
  return before.ok() && durable_places(**before) == durable_places(run_);
}

/// With new plans, and states that stay where they are. Swap files are as large as either's plans need until run.json
/// has the new ones, and records of both are there: who is killed goes on with those that it names.
Status Lifecycle::plan_anew() {
  SLUICE_TRY(agree(world_, Engine::grow_swap(run_, directory_->run()->id, world_.here())));
  SLUICE_ASSIGN(const bool has_other_blocks,
                together_.leader_says([&] { return directory_->run()->layout != durable_layout(run_); }));
  const auto change = [&] {
    tell_changes();
    return lay_out();
  };
  if (has_other_blocks) {
    const auto check = [&](std::uint64_t step) { return check_not_done(step); };
    const auto step = commit_other_blocks(*directory_, run_, world_, listener(), check);
    if (!step.ok()) return in_order_of_drives(step.error());
    done_ = static_cast<std::int64_t>(*step);
    SLUICE_TRY(together_.lead(change));
    SLUICE_TRY(agree(world_, settle_commits(durable_layout(run_))));
  }
  SLUICE_TRY(continue_durable());
  if (!has_other_blocks) SLUICE_TRY(together_.lead(change));
  return agree(world_, engine_->trim_swap());
}

/// Of a rank of here, which another may have the states of, too.
bool Lifecycle::lacks_swap() const {
  for (RankId r = world_.here().first; r < world_.here().end(); ++r)
    for (const std::string& drive : run_.config.nvme)
      if (std::error_code ignored; !std::filesystem::exists(drive + "/" + swap_name(directory_->run()->id, r), ignored))
        return true;
  return false;
}

Status Lifecycle::settle_commits(std::uint64_t layout) const {
  for (RankId r = world_.here().first; r < world_.here().end(); ++r) SLUICE_TRY(directory_->settle_commits(r, layout));
  return success();
}

/// For this layout, from what the run has left in another. Nothing is changed before its states are whole in a
/// checkpoint.
Status Lifecycle::lay_out_anew() {
  std::uint64_t step = 0;
  const bool was_there = directory_->has_saved();
  if (was_there) {
    SLUICE_ASSIGN(step, check_saved());
  } else {
    SLUICE_ASSIGN(step, save_for_other_layout(*directory_, run_.config, listener()));
  }
  if (const Status sound = check_not_done(step); !sound.ok()) {
    // One that was there may be all that there is of the run.
    if (!was_there) SLUICE_TRY(directory_->remove_saved());
    return sound;
  }
  done_ = static_cast<std::int64_t>(step);
  tell_changes();
  return lay_out();
}

/// From here on the run is as it is described now.
Status Lifecycle::lay_out() {
  has_changed_ = true;
  return directory_->lay_out(describe(), done_);
}

/// Reads it, ahead of anything that takes away what else there is.
Result<std::uint64_t> Lifecycle::check_saved() {
  return verify_saved(*directory_, run_, watch("verifying the states that were saved"));
}

/// How many in a row have been skipped up to this step, of the last results.
void Lifecycle::remember_skipped(std::uint64_t step, const std::vector<StepResult>& results) {
  for (auto result = results.rbegin();
       result != results.rend() && result->step == step && (result->marks & StepResult::skipped) != 0; ++result, --step)
    skipped_.insert(static_cast<std::int64_t>(step));
}

Status Lifecycle::check_same(const RunDescription& run) const {
  const std::string where = directory_->path();
  SLUICE_TRY(has_other_layout() ? check_same_model(*directory_, run_) : check_same_states(*directory_, run_));
  if (run.data_tokens != data_.tokens || run.data_hash != data_.hash)
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

/// Steps that are done stay done.
Status Lifecycle::check_not_done(std::uint64_t step) const {
  const SequencePhase phase = phase_of(run_.config);
  if (static_cast<std::int64_t>(step) <= phase.last) return success();
  if (static_cast<std::int64_t>(step) <= run_.config.steps)
    return bad_request(
        fmt::format("{}: the run stands at step {} with sequences of {}, which --seq-schedule {} has to step "
                    "{} alone; give a schedule that has them to step {} at least",
                    directory_->path(), step, phase.lengths(), run_.config.seq_schedule, phase.last, step));
  return bad_request(fmt::format("{}: the run stands at step {}, beyond --steps {}; give at least that",
                                 directory_->path(), step, run_.config.steps));
}

/// Files that were moved have one name in every directory, and nothing else tells which is which.
Error Lifecycle::in_order_of_drives(const Error& error) const {
  if (run_.config.nvme.size() < 2 || run_.config.nvme == directory_->run()->config.nvme) return error;
  return {error.code, error.message + "; --nvme names the directories in the order of those that the run had"};
}

/// How the steps to come differ from those before.
void Lifecycle::tell_changes() const {
  const RunConfig &before = directory_->run()->config, &now = run_.config;
  const std::string change = change_text(before, now);
  if (change.empty() || done_ == 0) return;
  std::string text = fmt::format("{}: from step {} on with {}", directory_->path(), done_ + 1, change);
  const double was = learning_rate(before.optimizer, done_ + 1, before.steps);
  const double is = learning_rate(now.optimizer, done_ + 1, now.steps);
  if (was != is) text += fmt::format("; the learning rate of that step is {:.4g}, and would have been {:.4g}", is, was);
  const Workload& w = run_.workload;
  const bool split = w.device.empty() && w.dtype == Dtype::bf16 && kernels::gemm_bf16_is_native();
  const bool same_sums = before.sums == RankSums::tree && now.sums == RankSums::tree;
  if (!same_sums && !is_laid_out_alike(before, now))
    text += fmt::format("; with --reduce {} bits depend on that", rank_sums_names[static_cast<std::size_t>(now.sums)]);
  const bool packs = now.activation_dtype != ActivationDtype::exact && before.activation_dtype == now.activation_dtype;
  if (packs && !is_laid_out_alike(before, now))
    text += fmt::format("; with --activation-dtype {} bits depend on what its plan parks",
                        activation_dtype_names[static_cast<std::size_t>(now.activation_dtype)]);
  if (before.ranks != now.ranks && before.threads == now.threads)
    text +=
        fmt::format("{}; each rank has {} compute thread{}, as before",
                    same_sums && !packs ? "; no bit depends on that" : "", now.threads, now.threads == 1 ? "" : "s");
  if (!has_same_bits(before, now)) text += "; from there on its bits are not those of a run that goes on as before";
  if (before.threads != now.threads)
    text += split ? "; where this CPU multiplies bf16 bits depend on the number of threads"
                  : "; no bit depends on the number of threads";
  observer_.note(text);
}

}  // namespace sluice
