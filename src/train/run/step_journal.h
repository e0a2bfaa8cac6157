// Commits of the ranks of this process: what every record needs to know, and how far they are durable.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "offload/run/store.h"
#include "offload/state/commit_log.h"
#include "src/train/request/prepare.h"
#include "src/train/run/run_directory.h"

namespace sluice {

class StepJournal {
 public:
  struct Options {
    std::uint64_t run_id = 0, layout = 0;
    RankId first = 0;     ///< of the ranks
    QueueOptions queue;   ///< backend and faults
    bool create = false;  ///< new records instead of those that are there
  };
  /// `stores`, one for each rank, with a plan bound, outlive the journal.
  static Result<std::unique_ptr<StepJournal>> open(const RunDirectory& directory, std::span<SwapStore* const> stores,
                                                   const Options& options);

  /// New logs take their names, the first rank's last: where that one is, all are.
  Status publish();

  RankId first() const { return first_; }
  RankId count() const { return static_cast<RankId>(ranks_.size()); }
  /// Steps that every rank of here has a valid record of, newest first.
  std::vector<std::uint64_t> steps() const;
  /// Valid records of the rank for this step, newest first.
  std::vector<const CommitRecord*> records(RankId rank, std::uint64_t step) const;
  std::vector<std::string> damage() const;  ///< one line for each record that is not valid
  /// The rank goes on from this record of its own.
  void continue_from(RankId rank, const CommitRecord& record);
  /// See CommitLog, of all ranks.
  Status forget_newer();

  /// What the next records tell of a step. Any thread.
  void add(const StepResult& result);
  /// Of a step, if it is among the last CommitLog::results_max.
  std::optional<StepResult> find(std::uint64_t step) const;

  /// Make the rank's slots of this parity the state after `step`. Lane threads; one at a time per rank.
  Status commit(RankId rank, std::uint64_t step, std::uint8_t parity);
  /// The step that all ranks of here have committed.
  std::uint64_t committed() const;
  /// An iteration was given up, and ranks may have made one commit more than others: those go one commit back.
  /// Returns whether this one does, to slots that nothing has been written to since.
  bool step_back(RankId rank, std::uint64_t step);

 private:
  struct Rank {
    std::unique_ptr<CommitLog> log;
    std::vector<BufferSums*> tables;
    std::vector<std::span<const std::uint64_t>> sums;  ///< of one commit
    std::vector<StepResult> results;                   ///< of one commit
    std::atomic<std::uint64_t> committed{0};
    std::uint64_t previous = 0;  ///< the step of the commit before
  };
  Rank& at(RankId rank) const { return *ranks_[static_cast<std::size_t>(rank - first_)]; }
  RankId first_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  mutable std::mutex mutex_;                                 ///< guards recent_
  std::array<StepResult, CommitLog::results_max> recent_{};  ///< ring by step; step 0 is none
};

/// What the durable slots of all ranks are, where they lie, and what of them a checksum covers, as one number.
std::uint64_t durable_layout(const Prepared& run);
/// The same as early versions counted it, by names.
std::uint64_t named_layout(const Prepared& run);
/// The same without checksums: equal for plans that find their states where the other's have left them.
std::uint64_t durable_places(const Prepared& run);

}  // namespace sluice
