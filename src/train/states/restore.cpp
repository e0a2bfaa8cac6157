#include "src/train/states/restore.h"

#include <optional>
#include <span>
#include <vector>

#include "io/checksum.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

/// Why steps can not be used.
struct Attempts {
  std::vector<std::string> notes;
  std::optional<Error> problem;

  void add(std::uint64_t step, const Error& error) {
    notes.push_back("step " + std::to_string(step) + " can not be used: " + error.message);
    // A drive that fails may yet work another time: then nothing is wrong with the request.
    if (!problem || problem->code == ErrorCode::damaged) problem = error;
  }
};

/// Another step may serve.
bool is_of_one_step(const Error& error) { return error.code == ErrorCode::damaged || error.code == ErrorCode::fault; }

/// One of the rank's records of the step whose slots verify; where there is none, why not.
Result<const CommitRecord*> restore_rank(RankId rank, std::uint64_t step, const StepJournal& journal,
                                         const RestoreListener& listener, const TakeRecord& take, Attempts& attempts) {
  std::optional<Error> problem;
  for (const CommitRecord* record : journal.records(rank, step)) {
    const Status restored = take(rank, *record, listener.watch("verifying the states of step " + std::to_string(step)));
    if (restored.ok()) return record;
    problem = restored.error();
    if (!is_of_one_step(*problem)) break;
    attempts.add(step, *problem);
  }
  SLUICE_CHECK(problem.has_value(), "(rank %d has no record of step %llu)", static_cast<int>(rank),
               static_cast<unsigned long long>(step));
  return *problem;
}

/// The message of a block that is not what was committed, where it need not be the drive's doing.
std::string without_cause(std::string text) {
  if (const std::size_t at = text.rfind(": check the drive"); at != std::string::npos) text.resize(at);
  return text;
}

/// What is wrong where neither record has its states: a record, the directory, or the drive.
Error none_is_whole(const RunDirectory& directory, Engine& engine, const StepJournal& journal,
                    const Attempts& attempts) {
  const std::string where = directory.path() + ": no committed step is whole: ", why = attempts.problem->message;
  if (attempts.problem->code == ErrorCode::fault) return fault(where + why);
  // A step overwrites the slots of the one before the newest, whose record is gone.
  if (!journal.damage().empty())
    return bad_request(where + journal.damage().front() + ", and the step before has been overwritten since (" +
                       without_cause(why) + "); put that file back as it was, or start a new run in another directory");
  const std::uint64_t step = journal.steps().front();
  const RankId rank = journal.first();
  const Result<States::Changed> changed = engine.states().count_changed(rank, *journal.records(rank, step).front());
  if (!changed.ok()) return changed.error().in(directory.path());
  // Nobody who goes on here writes to the newest slots, and a drive that fails loses blocks, not most of what there is.
  if (2 * changed->states > changed->all)
    return bad_request(where + "of the " + std::to_string(changed->all) + " states of step " + std::to_string(step) +
                       " the swap file holds something else in " + std::to_string(changed->states) + " (" +
                       without_cause(why) +
                       "): it has gone on with a copy of this directory, or was overwritten; go on in that copy, put "
                       "the swap file back as it was, or start a new run in another directory");
  return bad_request(where + why + "; put the swap file back as it was, or start a new run in another directory");
}

Status check_records(const RunDirectory& directory, const StepJournal& journal) {
  if (!journal.steps().empty()) return success();
  return bad_request(directory.path() + ": no commit record is whole: " +
                     (journal.damage().empty() ? "ranks differ" : journal.damage().front()) +
                     "; start a new run in another directory");
}

}  // namespace

std::uint64_t model_hash(const Prepared& prepared, Dtype dtype) {
  const std::string text = hf_config_json(prepared.model.config, dtype);
  return checksum(std::as_bytes(std::span(text)));
}

Status check_same_model(const RunDirectory& directory, const Prepared& prepared) {
  const RunDescription& run = *directory.run();
  if (run.model_hash != model_hash(prepared, run.config.dtype))
    return bad_request(directory.path() + ": " + prepared.config.model +
                       " is not the model that the run began with; put its configuration back, or start a new run");
  return success();
}

Status check_same_states(const RunDirectory& directory, const Prepared& prepared) {
  SLUICE_TRY(check_same_model(directory, prepared));
  const RunDescription& run = *directory.run();
  if (run.layout != durable_layout(prepared) && run.layout != named_layout(prepared))
    return bad_request(directory.path() +
                       " was laid out by another version of sluice; go on with that one, or start a new run");
  return success();
}

Result<std::unique_ptr<StepJournal>> open_journal(const RunDirectory& directory, const Prepared& prepared,
                                                  Engine& engine, bool create, const RestoreListener& listener) {
  const std::string& backend = prepared.config.io_backend;
  StepJournal::Options options;
  options.run_id = directory.run()->id;
  options.layout = create ? durable_layout(prepared) : directory.run()->layout;
  SLUICE_ASSIGN(options.queue.backend, parse_io_backend(backend.empty() ? prepared.profile.drive.backend : backend));
  options.queue.faults = prepared.config.faults;
  options.create = create;
  options.first = engine.here().first;
  std::vector<SwapStore*> stores;
  for (RankId r = engine.here().first; r < engine.here().end(); ++r) stores.push_back(engine.store(r));
  SLUICE_ASSIGN(auto journal, StepJournal::open(directory, stores, options));
  for (const std::string& line : journal->damage()) listener.note(line);
  return journal;
}

Result<std::uint64_t> take_newest(const RunDirectory& directory, Engine& engine, const StepJournal& journal) {
  SLUICE_TRY(check_records(directory, journal));
  const std::uint64_t step = journal.steps().front();
  for (RankId r = 0; r < journal.count(); ++r) engine.states().take_slots(r, *journal.records(r, step).front());
  return step;
}

Result<std::uint64_t> restore_newest(const RunDirectory& directory, Engine& engine, StepJournal& journal,
                                     const RestoreListener& listener, const TakeRecord& take) {
  const TakeRecord restore = [&](RankId rank, const CommitRecord& record, const States::Watch& watch) {
    return engine.states().restore(rank, record, watch);
  };
  SLUICE_TRY(engine.agree_on(check_records(directory, journal)));
  SLUICE_ASSIGN(const std::vector<std::uint64_t> steps, engine.states().common(journal.steps()));
  if (steps.empty()) return bad_request(directory.path() + ": no step was committed by all ranks; start a new run");
  Attempts attempts;
  for (const std::uint64_t step : steps) {
    std::vector<const CommitRecord*> records;
    Status whole;
    for (RankId r = journal.first(); r < journal.first() + journal.count() && whole.ok(); ++r) {
      const Result<const CommitRecord*> record =
          restore_rank(r, step, journal, listener, take ? take : restore, attempts);
      if (record.ok()) records.push_back(*record);
      if (!record.ok()) whole = record.error();
    }
    const Status everywhere = engine.agree_on(whole);
    if (!everywhere.ok() && !is_of_one_step(everywhere.error())) return everywhere.error();
    if (!everywhere.ok()) {
      if (whole.ok() || !is_of_one_step(whole.error())) attempts.add(step, everywhere.error());
      continue;
    }
    for (std::size_t i = 0; i < records.size(); ++i)
      journal.continue_from(static_cast<RankId>(journal.first() + i), *records[i]);
    for (const std::string& line : attempts.notes) listener.note(line);
    return step;
  }
  return engine.agree_on(none_is_whole(directory, engine, journal, attempts)).error();
}

}  // namespace sluice
