// States that a run keeps in its own directory, as a checkpoint: how a run that is not durable goes on after it was
// asked to stop, or had to, and how any run goes on in another layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "src/train/run/run_directory.h"
#include "src/train/states/engine.h"
#include "src/train/states/restore.h"
#include "src/train/states/save_checkpoint.h"

namespace sluice {

/// What a checkpoint says of the run that wrote it (Manifest::run).
struct SavedRun {
  RunDescription run;
  std::vector<StepResult> results;  ///< of the last steps, oldest first, which metrics may lack
};
std::string to_json_text(const SavedRun& saved);
/// bad_request for anything else.
Result<SavedRun> saved_run_from_json(const std::string& text);
/// Whether a run of sluice, of whichever version, says it of itself: what can not be read of it then is damaged, or
/// another version's. A checkpoint of no run, which import makes, has none.
bool is_of_a_run(const std::string& text);

/// A number that checkpoints of other states do not have.
std::uint64_t mark_of(const Manifest& manifest);

/// How checkpoints are written and read, where nothing else is said.
Result<QueueOptions> checkpoint_queue(const Prepared& run);

/// What save_run asks for, to be written by steps. The text of Manifest::run is to_json_text's.
Result<CheckpointRequest> request_of(const Prepared& run, const std::string& parent, std::uint64_t step);

/// Publishes the states, as they are, as step-`step` in `parent`, in the place of one that is there: its path. All
/// processes of `world`, which is null where there is one, call it.
Result<std::string> save_run(States& states, World* world, const Prepared& run, const SavedRun& saved,
                             const std::string& parent, std::uint64_t step, const States::Watch& watch);
/// bad_request where the directory holds checkpoints of another run, which this one would replace and prune. `run` is
/// null where the run has not begun: then any are another's.
Status check_checkpoints_of(const RunDescription* run, const std::string& parent);
/// bad_request where the directory holds checkpoints of another run than the one that says `text` of itself, or, where
/// none does, of any run: LATEST would name what is of another.
Status check_same_run(const std::string& text, const std::string& parent);

/// A checkpoint that the run itself goes on from. bad_request when it is damaged, or another run's.
Result<Checkpoint> open_saved(const RunDirectory& directory, const std::string& path);
/// One that is elsewhere is also in the run's own saved_path(), and nothing older is: before run.json says otherwise
/// where checkpoints are, or what the run goes on from.
Status keep_saved(const RunDirectory& directory, const std::string& path, const States::Watch& watch);
/// Reads all of it. Returns the step. Errors as open_saved's.
Result<std::uint64_t> verify_saved(const RunDirectory& directory, const Prepared& run, const States::Watch& watch);

/// The run as its plan has laid it out, to read what it has left: of the drives' directories that `now` names, where
/// those have moved, and asked as `now` says. bad_request where this version lays out that plan otherwise.
Result<std::unique_ptr<Prepared>> prepare_as_left(const RunDirectory& directory, const RunConfig& now);

/// Of a durable run: the newest step whose states are whole, every block verified, as a checkpoint in its directory.
/// Returns the step. Nothing else is written. `now` says where the drives are, and how they are asked. Errors:
/// bad_request, ahead of all work, where the directory has no room.
Result<std::uint64_t> save_for_other_layout(const RunDirectory& directory, const RunConfig& now,
                                            const RestoreListener& listener);

/// What a run that stands still has left, as a checkpoint in `parent`: its path. bad_request when there is none, since
/// it is complete, or was never saved, and where `parent` has one of the same step, or of another run.
Result<std::string> save_stopped(const RunDirectory& directory, const std::string& parent,
                                 const RestoreListener& listener);

}  // namespace sluice
