// Where a durable run stands: the newest step whose commit records and slots are whole on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/train/run/step_journal.h"
#include "src/train/states/engine.h"

namespace sluice {

/// Who hears how a restore goes. `watch` makes what is told the fraction that is done of a task, and may end it.
struct RestoreListener {
  std::function<void(const std::string& text)> note;
  std::function<States::Watch(const std::string& what)> watch;
};

/// What the model's configuration is, as one number, in a run with parameters of `dtype`.
std::uint64_t model_hash(const Prepared& prepared, Dtype dtype);
/// The run is of this model, and its states lie as the plan says: else bad_request with the directory's name.
Status check_same_model(const RunDirectory& directory, const Prepared& prepared);
Status check_same_states(const RunDirectory& directory, const Prepared& prepared);

/// The records of the engine's ranks; those that are damaged are noted. The engine outlives them.
Result<std::unique_ptr<StepJournal>> open_journal(const RunDirectory& directory, const Prepared& prepared,
                                                  Engine& engine, bool create, const RestoreListener& listener);

/// Takes the slots of the newest step that all ranks have a record of, unread. Returns the step; bad_request with the
/// directory's name when there is none.
Result<std::uint64_t> take_newest(const RunDirectory& directory, Engine& engine, const StepJournal& journal);

/// Takes the slots of that step for the engine's states, every block read and verified, and the journal goes on from
/// its records. Returns the step. Steps that can not be used are noted. Errors, all with the directory's name:
/// bad_request when no step is whole, fault when the drive fails. All processes of the engine's world call it. `take`
/// stands for States::restore where the slots are to be read otherwise.
using TakeRecord = std::function<Status(RankId rank, const CommitRecord& record, const States::Watch& watch)>;
Result<std::uint64_t> restore_newest(const RunDirectory& directory, Engine& engine, StepJournal& journal,
                                     const RestoreListener& listener, const TakeRecord& take = {});

}  // namespace sluice
