// A run from its beginning to its end: the directory that says what it is, its states (new ones, those that were
// committed, or those that were saved), and what is kept of them when it stops.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/comm/world.h"
#include "src/train/run/observer.h"
#include "src/train/run/reports.h"
#include "src/train/run/run_directory.h"
#include "src/train/run/saved_states.h"
#include "src/train/run/step_journal.h"
#include "src/train/run/together.h"
#include "src/train/states/engine.h"
#include "src/train/states/restore.h"

namespace sluice {

/// What a run knows its data by.
struct DataMark {
  std::uint64_t tokens = 0, hash = 0;
};

class Lifecycle final : public CommitSink {
 public:
  /// All outlive it; `directory` and `stop`, which ends open() early, may be null.
  Lifecycle(const Prepared& run, TrainObserver& observer, RunDirectory* directory, const std::atomic<bool>* stop,
            World& world, Together& together, StepReports& reports);
  ~Lifecycle() override;

  /// Reserves memory and drive for an engine that asks `source`, and fills the states. What can not be had leaves
  /// nothing; a run that goes on is touched last.
  Status open(StepSource& source, const DataMark& data);

  std::int64_t done() const { return done_; }  ///< the step that open() went on behind
  /// Steps, the last of those before done(), that were not finite.
  const std::set<std::int64_t>& skipped() const { return skipped_; }
  Engine& engine() { return *engine_; }
  StepJournal* journal() { return journal_.get(); }  ///< of durable runs, else null

  /// Of a step that has ended, where there is no journal to know it.
  void remember(const StepResult& result);
  /// Of a step of this process or of those before, if it is one of the last.
  std::optional<StepResult> find_result(std::int64_t step) const;
  /// What the next process goes on from, where steps are not durable: the states of step `done`, once.
  Status save_state(std::int64_t done);

  /// The states of this step, which has just ended, as a checkpoint in this directory, which then has the last `keep`
  /// (0: all). bad_request where those in it are another run's.
  Status save_checkpoint(std::int64_t step, const std::string& parent, int keep);

  /// The same without a stop: the updates of the iteration that is released next write what they leave, which are the
  /// states of `step`. `slots`: which one of a durable swap file that iteration writes, by rank of here. Errors as
  /// save_checkpoint's.
  Status begin_save(std::int64_t step, const std::string& parent, const std::vector<std::uint8_t>& slots);
  std::uint64_t saves() const { return saves_; }
  std::int64_t saving() const { return saving_ ? saving_->step : 0; }  ///< the step of what was begun, or 0
  /// `step` has ended: what is known of the run is of it, and not of later ones.
  void describe_save(std::int64_t step);
  /// The iteration has ended: publishes what was begun, of which the directory then has the last `keep`.
  Status finish_save(int keep);
  void drop_save();  ///< nothing runs any more: what was begun is given up

  Status commit(RankId rank, const StepParams& params, std::uint8_t parity) override;

  /// To the observer; cancelled once `stop` is true.
  Status pass_on(const std::string& what, double fraction);

 private:
  // lifecycle.cpp
  Status open_engine(bool swap_exists);
  Status check_room() const;
  Status check_room_for_checkpoints() const;
  Status save_to(const std::string& parent, std::int64_t done, const States::Watch& watch);
  SavedRun saved_run(std::int64_t done) const;
  Status prune(const std::string& parent, std::size_t keep);
  void note_saved(std::int64_t step, const std::string& parent, std::chrono::steady_clock::time_point began,
                  bool shared);
  Status check_parent(const std::string& parent, std::int64_t step, bool prunes);
  RestoreListener listener();
  States::Watch watch(const std::string& what);
  Status begin_run();
  Status keep_beside();
  Status fill_new();
  Status fill_restored();
  Status check_restored(const SavedRun& saved) const;
  Status commit_initial(std::uint64_t step, const std::vector<StepResult>& results);
  RunDescription describe() const;

  // lifecycle_continue.cpp
  bool has_other_layout() const { return !is_laid_out_alike(directory_->run()->config, run_.config); }
  Status check_same(const RunDescription& run) const;
  Status check_not_done(std::uint64_t step) const;
  void tell_changes() const;
  Error in_order_of_drives(const Error& error) const;
  Status continue_run();
  Status continue_durable();
  Status continue_saved(const std::string& path);
  Status check_saves() const;
  Status keep_saved_here();
  Status remove_old(const RunConfig& before);
  bool keeps_places() const;
  Status plan_anew();
  bool lacks_swap() const;
  Status settle_commits(std::uint64_t layout) const;
  Status lay_out_anew();
  Status lay_out();
  Result<std::uint64_t> check_saved();
  void remember_skipped(std::uint64_t step, const std::vector<StepResult>& results);

  const Prepared& run_;
  TrainObserver& observer_;
  RunDirectory* directory_;
  const std::atomic<bool>* stop_;
  World& world_;
  Together& together_;
  StepReports& reports_;
  StepSource* source_ = nullptr;
  DataMark data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<StepJournal> journal_;                     ///< of durable runs
  std::array<StepResult, CommitLog::results_max> recent_{};  ///< of others: ring by step; step 0 is none
  std::int64_t done_ = 0;
  bool has_changed_ = false;    ///< run.json says what is new of a run that goes on
  std::int64_t saved_ = -1;     ///< the step of the checkpoint of its own
  std::uint64_t saves_ = 0;     ///< checkpoints that were written where --save-every has them
  std::string checked_parent_;  ///< directory of checkpoints that had no other run's
  std::set<std::int64_t> skipped_;
  struct Saving {
    std::int64_t step = 0;
    std::string parent;
    std::chrono::steady_clock::time_point began;
    std::unique_ptr<CheckpointSave> save;
    std::string run;  ///< Manifest::run, once the step has ended
  };
  std::optional<Saving> saving_;  ///< goes before the engine
};

}  // namespace sluice
