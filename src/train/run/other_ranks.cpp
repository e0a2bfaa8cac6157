#include "src/train/run/other_ranks.h"

#include <sys/statvfs.h>

#include <vector>

#include "sluice/size.h"
#include "src/train/states/snapshot.h"

namespace sluice {

namespace {

Status check_room(const std::string& path, std::uint64_t needed) {
  struct statvfs space {};
  if (statvfs(path.c_str(), &space) != 0) return success();
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (needed <= free) return success();
  return bad_request("--run " + path + ": where ranks are arranged otherwise all states are written there, " +
                     format_bytes(needed) + ", and " + format_bytes(free) +
                     " are free; make room, or go on with ranks as before");
}

}  // namespace

Result<std::uint64_t> save_for_other_ranks(const RunDirectory& directory, const RunConfig& now,
                                           const RestoreListener& listener) {
  const RunDescription& run = *directory.run();
  RunConfig config = run.config;
  config.run = directory.path();  // wherever it was when it began
  config.nvme = now.nvme;
  config.io_backend = now.io_backend;
  config.queue_depth = now.queue_depth;
  config.faults = now.faults;
  SLUICE_ASSIGN(const auto prepared, prepare_stored(config, run.schedule, {run.block_bytes, run.stripe_weights}));
  SLUICE_TRY(check_same_states(directory, *prepared));
  SLUICE_ASSIGN(const auto engine, Engine::open_states(*prepared, run.id));
  SLUICE_TRY(check_room(directory.path(), engine->states().state_stream_bytes()));
  SLUICE_ASSIGN(const auto journal, open_journal(directory, *prepared, *engine, false, listener));
  SLUICE_ASSIGN(const std::uint64_t step, restore_newest(directory, *engine, *journal, listener));
  std::vector<StepResult> results;
  for (std::uint64_t s = step > CommitLog::results_max ? step - CommitLog::results_max + 1 : 1; s <= step; ++s)
    if (const auto known = journal->find(s)) results.push_back(*known);
  SLUICE_TRY(save_snapshot(directory.snapshot_path(), run.id, step, *engine, results,
                           listener.watch("writing the states of step " + std::to_string(step) + " for other ranks")));
  return verify_snapshot(directory.snapshot_path(), run.id, engine->states().state_stream_bytes(),
                         listener.watch("reading what was written"));
}

}  // namespace sluice
