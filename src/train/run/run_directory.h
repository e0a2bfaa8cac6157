// The directory of a run: what it is, how far it has come, and the lock that makes it one process's.
//
//     run.json          configuration, identity of model and data, schedule: written before the first step, and again
//                       when the run goes on otherwise
//     commit.R          the commit records of rank R (offload/state/commit_log.h), where the run is durable
//     commit.R.LAYOUT   the same of a layout that the run is going to have: its records as soon as run.json has that
//                       layout, and then renamed
//     saved/step-N/     all states, as a checkpoint, of a run that is not durable, written when it was asked to stop;
//     of
//                       a durable one while it is laid out otherwise
//     metrics.jsonl     a line per step
//     timeline.json     a step as predicted, and as measured, for `sluice report` (kept_timeline.h)
//     result.json       written when the run is complete
//     began_from/       tokenizer and settings of the model that it began from, which may be gone at the end
//     tokens/           text as tokens
//     config.json, model.safetensors, ...     when it is complete: a Hugging Face directory for other programs
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sluice/profile.h"
#include "src/schedule/schedule.h"
#include "src/train/request/run_changes.h"

namespace sluice {

/// In the directory of a run: see src/train/run/companions.h.
constexpr const char* began_from = "began_from";

/// Where the directory of a durable run lies, whose swap file one directory alone may go on with. Not the number of its
/// device: that may be another one after the machine was started again.
struct RunPlace {
  std::string path;  ///< with links followed
  std::uint64_t inode = 0;
  bool operator==(const RunPlace&) const = default;
};

/// What steps add up, and in which order, is a version's: a run of an early one can be exported, and not go on.
constexpr int run_version = 2;

/// What run.json holds.
struct RunDescription {
  int version = run_version;  ///< whose sums its steps have
  std::uint64_t id = 0;       ///< random: in the names of swap files and in commit records
  std::string machine;        ///< the same bits are promised on this one
  RunConfig config;           ///< nothing left open
  std::uint64_t model_hash = 0;
  std::uint64_t data_tokens = 0, data_hash = 0;
  std::uint64_t restored_step = 0;  ///< of the checkpoint that it began from: steps that it has no lines of
  Schedule schedule;
  std::uint32_t block_bytes = 0;
  std::vector<double> stripe_weights;
  std::uint64_t layout = 0;        ///< of the durable slots
  std::string device;              ///< Device::kind
  KernelChoices kernels;           ///< of a GPU
  std::optional<RunPlace> place;   ///< of a durable run; none in those of early versions
  std::vector<RunChange> changes;  ///< from which steps on it was as `config`, and how before
};

/// Where a run in that directory keeps copies of what lay beside the model that it began from.
inline std::string companions_of_run(const std::string& directory) { return directory + "/" + began_from; }

/// Move-only. Locked against other processes from open or begin until destroyed, but where it was only looked at.
class RunDirectory {
 public:
  /// Nothing is created. A directory that is missing, or holds no run, is free. bad_request when it is in use, when its
  /// run is of another version or damaged, or when parts of a run lie in it without the rest.
  static Result<RunDirectory> open(const std::string& path);
  /// To read what the run is, also while another process goes on with it: not locked, and not to be written to.
  static Result<RunDirectory> look(const std::string& path);

  RunDirectory() = default;
  ~RunDirectory();
  RunDirectory(RunDirectory&& other) noexcept { *this = std::move(other); }
  RunDirectory& operator=(RunDirectory&& other) noexcept;

  const std::optional<RunDescription>& run() const { return run_; }
  /// Makes the directory if it is missing: it is this process's from here on. bad_request when it has a run by now.
  Status make();
  /// make(), and publishes run.json.
  Status begin(const RunDescription& run);
  /// Whether the run may go on here: bad_request, naming the other, when another directory holds it too, since both
  /// would write to one swap file. A copy that replaces what is gone may: the run was moved, or put back from a backup.
  Status check_place() const;
  /// One line when the run goes on in another directory than before; else empty.
  std::string moved() const;
  /// What may change while a run goes on has changed behind step `done`; and it is remembered where it does.
  Status update(const RunConfig& config, std::int64_t done, const std::string& device, const KernelChoices& kernels);
  /// The run goes on in another layout: its schedule, and where its states lie, are those of `laid_out` from
  /// now on.
  Status lay_out(const RunDescription& laid_out, std::int64_t done);
  /// Whether the swap files of the first `ranks_here` ranks of a run that is to go on, those of this machine, lie in
  /// these directories: bad_request, naming what was looked for.
  Status check_swap_files(const std::vector<std::string>& directories, int ranks_here) const;
  /// Forget a run that never got as far as a state to go on from.
  Status forget();

  /// What result.json has, if the run is complete.
  Result<std::optional<nlohmann::ordered_json>> result() const;
  Status publish_result(const nlohmann::ordered_json& result) const;

  const std::string& path() const { return path_; }
  /// Of the layout that the run has.
  std::string commit_path(RankId rank) const;
  /// Of one that it is going to have.
  std::string next_commit_path(RankId rank, std::uint64_t layout) const;
  /// The rank's records of `layout`, which is the run's, get the name that they have for good; those of others go.
  Status settle_commits(RankId rank, std::uint64_t layout) const;
  std::string saved_path() const { return path_ + "/saved"; }  ///< directory of checkpoints
  std::string companions() const { return companions_of_run(path_); }
  bool has_commits() const;
  /// The newest checkpoint that the run goes on from, be it saved when it stopped, or one of those that it saves every
  /// few steps. Of a durable run: one that is there while it is laid out otherwise. Empty: none.
  std::string newest_saved() const;
  bool has_saved() const { return !newest_saved().empty(); }
  std::uint64_t saved_bytes() const;
  Status remove_state() const;               ///< commit records and checkpoints of its own
  Status remove_commits(RankId from) const;  ///< of this rank and those behind it
  Status remove_saved() const;

 private:
  Status open_fd();
  Status lock();
  Status read_run();
  std::optional<RunPlace> here() const;
  bool is_other_of_this_run(const std::string& path) const;
  std::string path_;
  int fd_ = -1;
  std::optional<RunDescription> run_;
};

/// What run.json has, and back: bad_request for anything else.
nlohmann::ordered_json run_to_json(const RunDescription& run);
Result<RunDescription> run_from_json(const nlohmann::ordered_json& json);

/// What the lines of its metrics and its result have as "run".
std::string run_name(std::uint64_t run_id);
/// Of each rank: "sluice-<id>.swap" of the first, "sluice-<id>.<rank>.swap" of the others.
std::string swap_name(std::uint64_t run_id, RankId rank);
/// Those of ranks from this one on, as many as there ever were.
Status remove_swap_files(std::uint64_t run_id, const std::vector<std::string>& directories, RankId from);

}  // namespace sluice
