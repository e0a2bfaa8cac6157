#include "src/train/restore.h"

#include <optional>
#include <span>

#include "io/checksum.h"
#include "src/train/export.h"

namespace sluice {
namespace {

/// One of the rank's records of the step whose slots verify; where there is none, why not.
Result<const CommitRecord*> restore_rank(RankId rank, std::uint64_t step, Engine& engine, const StepJournal& journal,
                                         const RestoreListener& listener) {
  std::optional<Error> problem;
  for (const CommitRecord* record : journal.records(rank, step)) {
    const Status restored =
        engine.restore(rank, *record, listener.watch("verifying the states of step " + std::to_string(step)));
    if (restored.ok()) return record;
    const ErrorCode code = restored.error().code;
    if (code != ErrorCode::damaged && code != ErrorCode::fault) return restored.error();
    listener.note("step " + std::to_string(step) + " can not be used: " + restored.error().message);
    // A drive that fails may yet work another time: then nothing is wrong with the request.
    if (!problem || problem->code == ErrorCode::damaged) problem = restored.error();
  }
  SLUICE_CHECK(problem.has_value(), "(rank %d has no record of step %llu)", static_cast<int>(rank),
               static_cast<unsigned long long>(step));
  return *problem;
}

Status check_records(const RunDirectory& directory, const StepJournal& journal) {
  if (!journal.steps().empty()) return success();
  return bad_request(directory.path() + ": no commit record is whole: " +
                     (journal.damage().empty() ? "ranks differ" : journal.damage().front()) +
                     "; start a new run in another directory");
}

}  // namespace

std::uint64_t model_hash(const Prepared& prepared) {
  const std::string text = hf_config_json(prepared.model.config, prepared.workload.dtype);
  return checksum(std::as_bytes(std::span(text)));
}

Status check_same_states(const RunDirectory& directory, const Prepared& prepared) {
  const RunDescription& run = *directory.run();
  if (run.model_hash != model_hash(prepared))
    return bad_request(directory.path() + ": " + prepared.config.model +
                       " is not the model that the run began with; put its configuration back, or start a new run");
  if (run.layout != durable_layout(prepared.main))
    return bad_request(directory.path() +
                       " was laid out by another version of sluice; go on with that one, or start a new run");
  return success();
}

Result<std::unique_ptr<StepJournal>> open_journal(const RunDirectory& directory, const Prepared& prepared,
                                                  SwapStore& store, bool create, const RestoreListener& listener) {
  const std::string& backend = prepared.config.io_backend;
  StepJournal::Options options;
  options.run_id = directory.run()->id;
  options.layout = durable_layout(prepared.main);
  options.ranks = prepared.workload.ranks;
  SLUICE_ASSIGN(options.queue.backend, parse_io_backend(backend.empty() ? prepared.profile.drive.backend : backend));
  options.queue.faults = prepared.config.faults;
  options.create = create;
  SLUICE_ASSIGN(auto journal, StepJournal::open(directory, store, options));
  for (const std::string& line : journal->damage()) listener.note(line);
  return journal;
}

Result<std::uint64_t> take_newest(const RunDirectory& directory, Engine& engine, const StepJournal& journal,
                                  RankId ranks) {
  SLUICE_TRY(check_records(directory, journal));
  const std::uint64_t step = journal.steps().front();
  for (RankId r = 0; r < ranks; ++r) engine.take_slots(r, *journal.records(r, step).front());
  return step;
}

Result<std::uint64_t> restore_newest(const RunDirectory& directory, Engine& engine, StepJournal& journal, RankId ranks,
                                     const RestoreListener& listener) {
  SLUICE_TRY(check_records(directory, journal));
  std::optional<Error> problem;
  for (const std::uint64_t step : journal.steps()) {
    bool whole = true;
    for (RankId r = 0; r < ranks && whole; ++r) {
      const Result<const CommitRecord*> record = restore_rank(r, step, engine, journal, listener);
      whole = record.ok();
      if (whole) {
        journal.continue_from(r, **record);
        continue;
      }
      const ErrorCode code = record.error().code;
      if (code != ErrorCode::damaged && code != ErrorCode::fault) return record.error();
      if (!problem || problem->code == ErrorCode::damaged) problem = record.error();
    }
    if (whole) return step;
  }
  const std::string text = directory.path() + ": no committed step is whole: " + problem->message;
  if (problem->code == ErrorCode::fault) return fault(text);
  return bad_request(text + "; put the swap file back as it was, or start a new run in another directory");
}

}  // namespace sluice
