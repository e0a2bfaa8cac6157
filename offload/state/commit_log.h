// Which step of one rank is durable: a record per commit, written in turn to the two places of one small file.
//
//     place k: head | results of the last steps | checksums of the current slots' blocks | zeros up to a page
//
// A record is written only when everything that it names is durable, and is durable itself before the other slots are
// written to. It never takes the place of the newest valid one, so a crash leaves one to continue from at any moment.
// Little endian; the head's checksum covers the record.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/drives/queue.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

/// What the metrics tell of a step, kept in records so that no line is lost with the process that would have written
/// it.
struct StepResult {
  std::uint64_t step = 0;
  double loss = 0, grad_norm = 0, seconds = 0;
  enum : std::uint64_t {
    skipped = 1,   ///< not finite, the states are those of the step before
    repaired = 2,  ///< made twice, since it was begun with a clip factor that was not its own
  };
  std::uint64_t marks = 0;  ///< of these
};

struct CommitRecord {
  std::uint64_t sequence = 0;       ///< of commits
  std::uint64_t step = 0;           ///< whose update is in the slots
  std::uint8_t parity = 0;          ///< the physical slot that holds it
  std::vector<StepResult> results;  ///< of the last steps up to `step`, oldest first
  std::vector<std::uint64_t> sums;  ///< of every block of the slot, as SwapStore::durable_sums lists them
};

/// One thread at a time. The file is open and locked while the log lives.
class CommitLog {
 public:
  static constexpr std::size_t results_max = 64;
  struct Identity {
    std::uint64_t run_id = 0, layout = 0;  ///< of the run; of its slots (durable_layout)
    RankId rank = 0;
    std::uint64_t sums = 0;  ///< how many a record has
  };
  /// `queue` says how to write (backend, faults). With `create` the file starts empty, whatever was there, and under a
  /// name of its own until publish. Else:
  /// bad_request when it is missing, of another size, or in use; records that are not valid are not among records().
  static Result<std::unique_ptr<CommitLog>> open(const std::string& path, const Identity& identity, QueueOptions queue,
                                                 bool create);
  ~CommitLog();
  CommitLog(const CommitLog&) = delete;
  CommitLog& operator=(const CommitLog&) = delete;

  /// What open found, newest first: at most two.
  const std::vector<CommitRecord>& records() const { return records_; }
  /// One line why a place has no valid record, for each such place that is not empty.
  const std::vector<std::string>& damage() const { return damage_; }
  /// The run goes on from this record: the next one goes to the other place.
  void continue_from(const CommitRecord& record);
  /// Takes away what is newer than that record, if anything is: a later step of that number may be another one, and must
  /// not be taken for it. Before anything new is written.
  Status forget_newer();

  /// The run goes on from the record before the last one that was written.
  void step_back() { next_place_ = 1 - next_place_; }

  /// A new log takes its name, when it has a record.
  Status publish();

  /// Make the record durable: write, fdatasync. The sequence is the log's own; `sums` are copied from the tables in
  /// order. Allocates nothing. At most results_max results (the newest are kept).
  Status write(std::uint64_t step, std::uint8_t parity, std::span<const StepResult> results,
               std::span<const std::span<const std::uint64_t>> sums);

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  CommitLog(const Identity& identity, std::string path);
  void read_place(std::size_t place, std::span<const std::byte> bytes);

  Identity identity_;
  IoFile file_;
  std::uint64_t place_bytes_;
  std::unique_ptr<std::byte, Free> memory_;  ///< of one place
  std::unique_ptr<IoQueue> queue_;
  std::vector<CommitRecord> records_;
  std::vector<std::string> damage_;
  std::uint64_t sequence_ = 0;  ///< of the newest record that was ever seen or written
  std::uint64_t from_ = 0;      ///< sequence of the record that the run goes on from
  std::size_t next_place_ = 0;
};

}  // namespace sluice
