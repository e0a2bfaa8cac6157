#include "src/train/run/saved_states.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "io/checkpoint/copy.h"
#include "io/checkpoint/verify.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool read_number(const Json& j, const char* key, double& value) {
  if (!j.contains(key) || !(j[key].is_number() || j[key].is_null())) return false;
  value = j[key].is_null() ? std::nan("") : j[key].get<double>();  // JSON has no word for it
  return true;
}

bool read_result(const Json& j, StepResult& result) {
  if (!j.is_object() || !j.contains("step") || !j["step"].is_number_unsigned()) return false;
  result.step = j["step"].get<std::uint64_t>();
  if (j.contains("skipped")) result.marks |= StepResult::skipped;
  if (j.contains("repaired")) result.marks |= StepResult::repaired;
  return read_number(j, "loss", result.loss) && read_number(j, "grad_norm", result.grad_norm) &&
         read_number(j, "seconds", result.seconds);
}

}  // namespace

std::string to_json_text(const SavedRun& saved) {
  Json results = Json::array();
  for (const StepResult& r : saved.results) {
    Json j{{"step", r.step}, {"loss", r.loss}, {"grad_norm", r.grad_norm}, {"seconds", r.seconds}};
    if ((r.marks & StepResult::skipped) != 0) j["skipped"] = true;
    if ((r.marks & StepResult::repaired) != 0) j["repaired"] = true;
    results.push_back(std::move(j));
  }
  return Json{{"writer", "sluice"}, {"description", run_to_json(saved.run)}, {"results", results}}.dump();
}

Result<SavedRun> saved_run_from_json(const std::string& text) {
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object() || !j.contains("description"))
    return bad_request("says nothing of the run that wrote it, which is needed to go on");
  SavedRun saved;
  SLUICE_ASSIGN(saved.run, run_from_json(j["description"]));
  const RunConfig& c = saved.run.config;
  constexpr int most = 1 << 24;  // products of two do not overflow
  for (const std::int64_t size : {std::int64_t{c.batch}, std::int64_t{c.micro_batch}, std::int64_t{c.ranks},
                                  std::int64_t{c.stages}, std::int64_t{c.tensor}, std::int64_t{c.context},
                                  std::int64_t{c.slices}, std::int64_t{c.pipeline.chunks}, c.sequence})
    if (size < 1 || size > most) return bad_request("says of the run that wrote it what no run is");
  if (c.lots < 0 || c.lots > most || c.shard_group < 0 || c.second_copy < 0 ||
      c.stages > c.ranks / c.tensor / c.context)
    return bad_request("says of the run that wrote it what no run is");
  const bool listed = j.contains("results") && j["results"].is_array();
  for (std::size_t i = 0; listed && i < j["results"].size(); ++i)
    if (!read_result(j["results"][i], saved.results.emplace_back())) return bad_request("has results that are none");
  return saved;
}

bool is_of_a_run(const std::string& text) {
  const Json j = Json::parse(text, nullptr, false);
  return j.is_object() && (j.contains("description") || (j.contains("writer") && j["writer"] == "sluice"));
}

std::uint64_t mark_of(const Manifest& manifest) {
  std::uint64_t mark = manifest.step;
  for (const StoredFile& file : manifest.files) mark = mark * 31 + file.sums;
  return mark;
}

Result<QueueOptions> checkpoint_queue(const Prepared& run) {
  QueueOptions queue;
  const std::string& backend = run.config.io_backend.empty() ? run.profile.drive.backend : run.config.io_backend;
  SLUICE_ASSIGN(queue.backend, parse_io_backend(backend.empty() ? "auto" : backend));
  return queue;
}

Result<CheckpointRequest> request_of(const Prepared& run, const std::string& parent, std::uint64_t step) {
  CheckpointRequest request;
  request.parent = parent;
  request.step = step;
  request.model = hf_config_json(run.model.config, run.workload.dtype);
  request.replace = true;
  SLUICE_ASSIGN(request.queue, checkpoint_queue(run));
  return request;
}

Result<std::string> save_run(States& states, World* world, const Prepared& run, const SavedRun& saved,
                             const std::string& parent, std::uint64_t step, const States::Watch& watch) {
  SLUICE_ASSIGN(CheckpointRequest request, request_of(run, parent, step));
  request.run = to_json_text(saved);
  return save_checkpoint(states, world, request, watch);
}

Status check_checkpoints_of(const RunDescription* run, const std::string& parent) {
  std::error_code ignored;
  if (!std::filesystem::exists(parent, ignored)) return success();
  SLUICE_ASSIGN(const std::vector<ListedCheckpoint> all, list_checkpoints(parent));
  for (const ListedCheckpoint& listed : all) {
    if (!listed.is_whole) SLUICE_TRY(check_replaceable(listed.path));
    if (!listed.is_whole) continue;
    const Result<Checkpoint> opened = Checkpoint::open(listed.path);
    if (!opened.ok())
      return bad_request(parent + " holds what can not be read as a checkpoint (" + opened.error().message +
                         "); remove it, or give another directory");
    const Result<SavedRun> saved = saved_run_from_json(opened->manifest().run);
    if (!saved.ok() || run == nullptr || saved->run.id != run->id)
      return bad_request(parent + " holds " + listed.path + " of another run; give a directory of this run's own");
  }
  return success();
}

Status check_same_run(const std::string& text, const std::string& parent) {
  const auto id_of = [](const std::string& of) -> std::optional<std::uint64_t> {
    const Result<SavedRun> saved = saved_run_from_json(of);
    return saved.ok() ? std::optional(saved->run.id) : std::nullopt;
  };
  std::error_code ignored;
  if (!std::filesystem::exists(parent, ignored)) return success();
  SLUICE_ASSIGN(const std::vector<ListedCheckpoint> all, list_checkpoints(parent));
  for (const ListedCheckpoint& listed : all) {
    const Result<Checkpoint> there =
        listed.is_whole ? Checkpoint::open(listed.path) : Result<Checkpoint>(bad_request(""));
    if (there.ok() && id_of(there->manifest().run) != id_of(text))
      return bad_request(parent + " holds " + listed.path + " of " +
                         (id_of(there->manifest().run) ? "another run" : "no run") + "; give another directory");
  }
  return success();
}

Result<Checkpoint> open_saved(const RunDirectory& directory, const std::string& path) {
  Result<Checkpoint> opened = Checkpoint::open(path);
  if (!opened.ok()) return opened;
  const Result<SavedRun> saved = saved_run_from_json(opened->manifest().run);
  if (!saved.ok()) return saved.error().in(opened->path());
  if (saved->run.id != directory.run()->id) return bad_request(opened->path() + " belongs to another run");
  const Manifest& m = opened->manifest();
  const bool has_moments = std::ranges::any_of(m.files.front().units.front().states,
                                               [](const StoredState& s) { return s.kind == StateKind::exp_avg; });
  if (m.step > 0 && !has_moments)
    return bad_request(opened->path() + " has no moments of the optimizer, which the run had; put back what was there");
  return opened;
}

Status keep_saved(const RunDirectory& directory, const std::string& path, const States::Watch& watch) {
  const std::string parent = directory.saved_path();
  if (std::filesystem::path(path).parent_path() == parent) return success();
  SLUICE_ASSIGN(Checkpoint from, open_saved(directory, path));
  const auto all = 2 * static_cast<double>(from.manifest().state_bytes());
  std::uint64_t done = 0;
  SLUICE_TRY(copy_checkpoint(from, parent, {}, [&](std::uint64_t bytes) {
    return watch ? watch(std::min(1.0, static_cast<double>(done += bytes) / all)) : success();
  }));
  const auto pruned = prune_checkpoints(parent, 1);
  return pruned.ok() ? success() : Status(pruned.error());
}

Result<std::uint64_t> verify_saved(const RunDirectory& directory, const Prepared& run, const States::Watch& watch) {
  SLUICE_ASSIGN(Checkpoint checkpoint, open_saved(directory, directory.newest_saved()));
  SLUICE_ASSIGN(const QueueOptions queue, checkpoint_queue(run));
  const auto all = static_cast<double>(checkpoint.manifest().state_bytes());
  std::uint64_t done = 0;
  SLUICE_TRY(verify_checkpoint(checkpoint, queue, [&](std::uint64_t bytes) {
    return watch ? watch(std::min(1.0, static_cast<double>(done += bytes) / all)) : success();
  }));
  return checkpoint.manifest().step;
}

Result<std::unique_ptr<Prepared>> prepare_as_left(const RunDirectory& directory, const RunConfig& now) {
  const RunDescription& run = *directory.run();
  RunConfig config = run.config;
  config.run = directory.path();                                      // wherever it was when it began
  if (config.nvme.size() == now.nvme.size()) config.nvme = now.nvme;  // they were moved; else they are others
  config.io_backend = now.io_backend;
  config.queue_depth = now.queue_depth;
  config.faults = now.faults;
  SLUICE_ASSIGN(auto prepared, prepare_stored(config, run.schedule, {run.block_bytes, run.stripe_weights}));
  SLUICE_TRY(check_same_states(directory, *prepared));
  return prepared;
}

namespace {

/// The newest step of a durable run whose states are whole, in `parent`.
Result<std::string> save_slots(const RunDirectory& directory, const RunConfig& now, const std::string& parent,
                               bool replace, const RestoreListener& listener) {
  const RunDescription& run = *directory.run();
  SLUICE_ASSIGN(const auto prepared, prepare_as_left(directory, now));
  SLUICE_ASSIGN(const auto engine, Engine::open_states(*prepared, run.id));
  SLUICE_ASSIGN(const auto journal, open_journal(directory, *prepared, *engine, false, listener));
  SLUICE_TRY(check_checkpoint_room(parent, engine->states().checkpoint_bytes()));
  const auto check_free = [&](std::uint64_t step) -> Status {
    const std::string path = parent + "/" + checkpoint_name(step);
    std::error_code ignored;
    return replace || !std::filesystem::exists(path, ignored) ? success()
                                                              : Status(bad_request(path + " is there already"));
  };
  const auto save_step = [&](std::uint64_t step) -> Result<std::string> {
    SLUICE_TRY(check_free(step));
    const SavedRun saved{run, journal->records(journal->first(), step).front()->results};
    return save_run(engine->states(), nullptr, *prepared, saved, parent, step,
                    listener.watch("writing the states of step " + std::to_string(step) + " to " + parent));
  };
  // Every block is verified as it is copied; an older step is looked for where one is damaged.
  SLUICE_ASSIGN(const std::uint64_t newest, take_newest(directory, *engine, *journal));
  Result<std::string> saved = save_step(newest);
  if (saved.ok() || saved.error().code != ErrorCode::damaged) return saved;
  listener.note("step " + std::to_string(newest) + " can not be used: " + saved.error().message);
  SLUICE_ASSIGN(const std::uint64_t whole, restore_newest(directory, *engine, *journal, listener));
  return save_step(whole);
}

}  // namespace

Result<std::uint64_t> save_for_other_layout(const RunDirectory& directory, const RunConfig& now,
                                            const RestoreListener& listener) {
  SLUICE_ASSIGN(const std::string path, save_slots(directory, now, directory.saved_path(), true, listener));
  return *step_of_name(std::filesystem::path(path).filename());
}

Result<std::string> save_stopped(const RunDirectory& directory, const std::string& parent,
                                 const RestoreListener& listener) {
  if (!directory.run()) return bad_request(directory.path() + " holds no run: there is no run.json in it");
  SLUICE_ASSIGN(const auto result, directory.result());
  if (result)
    return bad_request(directory.path() +
                       ": the run is complete, and has its model alone; 'sluice checkpoint import' "
                       "makes a checkpoint of that, without moments");
  SLUICE_TRY(check_checkpoints_of(&*directory.run(), parent));
  if (!directory.has_saved() && directory.run()->config.durable == Durable::on && directory.has_commits())
    return save_slots(directory, directory.run()->config, parent, false, listener);
  if (!directory.has_saved())
    return bad_request(directory.path() +
                       ": the run was cut short before anything of it was kept; go on with it "
                       "(sluice train --run " +
                       directory.path() + " --resume)");
  SLUICE_ASSIGN(Checkpoint saved, open_saved(directory, directory.newest_saved()));
  const auto watch = listener.watch("copying " + saved.path() + " to " + parent);
  const auto all = 2 * static_cast<double>(saved.manifest().state_bytes());
  std::uint64_t done = 0;
  SLUICE_ASSIGN(const CheckpointCopy copy, copy_checkpoint(saved, parent, {}, [&](std::uint64_t bytes) {
                  return watch ? watch(static_cast<double>(done += bytes) / all) : success();
                }));
  return copy.path;
}

}  // namespace sluice
