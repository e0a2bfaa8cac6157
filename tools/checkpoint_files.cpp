// sluice checkpoint save, verify, list, prune: checkpoints as files.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/checkpoint/sign.h"
#include "io/checkpoint/verify.h"
#include "sluice/size.h"
#include "src/train/run/save_request.h"
#include "src/train/run/saved_states.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_home.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Result<QueueOptions> queue_of(const std::string& backend, int depth) {
  QueueOptions queue;
  SLUICE_ASSIGN(queue.backend, parse_io_backend(backend));
  if (depth > 0) queue.depth = static_cast<std::size_t>(depth);
  return queue;
}

std::string modified(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0) return "?";
  return fmt::format("{:%F %T}", fmt::localtime(there.st_mtime));
}

/// Bytes of all files, as a fraction.
std::function<Status(std::uint64_t)> of_all(const Checkpoint& checkpoint, const States::Watch& watch) {
  double all = 1;
  for (const StoredFile& file : checkpoint.manifest().files) all += static_cast<double>(file.bytes);
  return [watch, all, done = 0.0](std::uint64_t bytes) mutable {
    return watch(std::min(1.0, (done += static_cast<double>(bytes)) / all));
  };
}

// save

struct SaveOptions {
  std::string run, directory, key;
  bool json = false;
};

/// The run goes on in another process: it is asked, and makes one after its next step.
Status ask_run(const SaveOptions& o, const std::string& run, const std::string& parent, const std::atomic<bool>& stop,
               ProgressLine& line) {
  using namespace std::chrono_literals;
  const SaveRequest request(run);
  SLUICE_TRY(request.ask(parent));
  line.note("the run in " + o.run + " goes on; it saves a checkpoint after its next step");
  while (request.is_open()) {
    std::this_thread::sleep_for(20ms);
    if (stop.load()) {
      request.take_back();
      return Error{ErrorCode::cancelled, "stopped by a signal; the checkpoint is not asked for any more"};
    }
    // It may have ended meanwhile, and then nobody answers.
    if (const auto idle = RunDirectory::open(run); idle.ok() && request.is_open()) {
      request.take_back();
      return fault(o.run + ": the run ended before it saved a checkpoint; the same command saves what it has left");
    }
  }
  return request.answer();
}

Status save(const SaveOptions& o) {
  const std::string run = absolute_path(o.run), parent = absolute_path(o.directory);
  std::error_code ignored;
  if (!fs::exists(run, ignored)) return bad_request("there is no " + o.run + "; give the directory of a run");
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !o.json);
  const Clock::time_point began = Clock::now();
  std::string path;
  const Result<RunDirectory> directory = RunDirectory::open(run);
  if (directory.ok()) {
    SLUICE_ASSIGN(path, save_stopped(*directory, parent, on_line(line, stop)));
  } else {
    SLUICE_ASSIGN(const RunDirectory busy, RunDirectory::look(run));
    if (!busy.run()) return directory.error();
    SLUICE_TRY(check_checkpoints_of(&*busy.run(), parent));
    SLUICE_TRY(ask_run(o, run, parent, stop, line));
    SLUICE_ASSIGN(const Checkpoint made, Checkpoint::open(parent));
    path = made.path();
  }
  line.finish();
  const double seconds = seconds_since(began);
  SLUICE_ASSIGN(const Checkpoint saved, Checkpoint::open(path));
  if (!o.key.empty())
    SLUICE_TRY(sign_checkpoint(saved, o.key, of_all(saved, on_line(line, stop).watch("signing " + path))));
  line.finish();
  const Manifest& m = saved.manifest();
  if (o.json) {
    std::printf(
        "%s\n",
        Json{{"checkpoint", path}, {"step", m.step}, {"bytes", m.state_bytes()}, {"seconds", seconds}}.dump().c_str());
    return success();
  }
  std::printf("%s: step %llu, %s of states in %zu file%s, %s\n", path.c_str(), static_cast<unsigned long long>(m.step),
              format_bytes(m.state_bytes()).c_str(), m.files.size(), m.files.size() == 1 ? "" : "s",
              format_seconds(seconds).c_str());
  return success();
}

// sign

struct SignOptions {
  std::string path, key;
};

Status sign(const SignOptions& o) {
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, true);
  SLUICE_ASSIGN(const std::string named, checkpoints_of(o.path));
  SLUICE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(named));
  SLUICE_TRY(checkpoint.check_present());
  const States::Watch watch = on_line(line, stop).watch("signing " + checkpoint.path());
  SLUICE_TRY(sign_checkpoint(checkpoint, o.key, of_all(checkpoint, watch)));
  line.finish();
  std::printf("%s: signed\n", checkpoint.path().c_str());
  return success();
}

// verify

struct VerifyOptions {
  std::vector<std::string> paths;
  std::string key;
  std::string io = "auto";
  int depth = 0;
  bool json = false;
};

Status verify(const VerifyOptions& o) {
  SLUICE_ASSIGN(const QueueOptions queue, queue_of(o.io, o.depth));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !o.json);
  const RestoreListener listener = on_line(line, stop);
  Json all = Json::array();
  for (const std::string& path : o.paths) {
    SLUICE_ASSIGN(const std::string named, checkpoints_of(path));
    SLUICE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(named));
    const States::Watch watch = listener.watch("verifying " + checkpoint.path());
    const auto bytes = checkpoint.manifest().state_bytes();
    if (!o.key.empty())
      SLUICE_TRY(verify_signature(
          checkpoint, o.key, of_all(checkpoint, listener.watch("verifying the signature of " + checkpoint.path()))));
    std::uint64_t done = 0;
    const Clock::time_point began = Clock::now();
    SLUICE_TRY(verify_checkpoint(checkpoint, queue, [&](std::uint64_t more) {
      return watch(static_cast<double>(done += more) / static_cast<double>(bytes));
    }));
    const double seconds = seconds_since(began);
    line.finish();
    if (!o.json)
      std::printf("%s: step %llu is whole: %s in %s, %s/s\n", checkpoint.path().c_str(),
                  static_cast<unsigned long long>(checkpoint.manifest().step), format_bytes(bytes).c_str(),
                  format_seconds(seconds).c_str(),
                  format_bytes(static_cast<std::uint64_t>(static_cast<double>(bytes) / seconds)).c_str());
    all.push_back({{"checkpoint", checkpoint.path()},
                   {"step", checkpoint.manifest().step},
                   {"bytes", bytes},
                   {"seconds", seconds},
                   {"whole", true},
                   {"signed", !o.key.empty()}});
  }
  if (o.json) std::printf("%s\n", all.dump().c_str());
  return success();
}

// list

struct ListOptions {
  std::string directory;
  bool json = false;
};

Status list(const ListOptions& o) {
  SLUICE_ASSIGN(const std::string parent, checkpoints_of(o.directory));
  SLUICE_ASSIGN(const std::vector<ListedCheckpoint> all, list_checkpoints(parent));
  Json rows = Json::array();
  if (all.empty() && !o.json) std::printf("%s holds no checkpoints\n", parent.c_str());
  for (const ListedCheckpoint& listed : all) {
    const Result<Checkpoint> opened =
        listed.is_whole ? Checkpoint::open(listed.path) : Result<Checkpoint>(bad_request("it has no manifest"));
    const std::string when = modified(listed.path);
    if (o.json) {
      Json row{{"checkpoint", listed.path}, {"step", listed.step}, {"saved", when}, {"latest", listed.latest}};
      if (opened.ok()) row["bytes"] = opened->manifest().state_bytes();
      if (opened.ok()) row["files"] = opened->manifest().files.size();
      if (!opened.ok()) row["problem"] = opened.error().message;
      rows.push_back(std::move(row));
      continue;
    }
    const std::string what =
        opened.ok() ? fmt::format("{:>10} in {} file{}", format_bytes(opened->manifest().state_bytes()),
                                  opened->manifest().files.size(), opened->manifest().files.size() == 1 ? "" : "s")
                    : "not usable: " + opened.error().message;
    std::printf("%s  %s  %s%s\n", fmt::format("{:<14}", checkpoint_name(listed.step)).c_str(), when.c_str(),
                what.c_str(), listed.latest ? ", the latest" : "");
  }
  if (o.json) std::printf("%s\n", rows.dump().c_str());
  return success();
}

// prune

struct PruneOptions {
  std::string directory;
  int keep = 0;
  bool json = false;
};

Status prune(const PruneOptions& o) {
  SLUICE_ASSIGN(const std::string parent, checkpoints_of(o.directory));
  SLUICE_ASSIGN(const std::vector<std::string> gone, prune_checkpoints(parent, static_cast<std::size_t>(o.keep)));
  if (o.json) {
    std::printf("%s\n", Json{{"removed", gone}}.dump().c_str());
    return success();
  }
  for (const std::string& path : gone) std::printf("removed %s\n", path.c_str());
  if (gone.empty())
    std::printf("%s: none is removed; it has no more than %d, but for what LATEST names and what is not whole\n",
                parent.c_str(), o.keep);
  return success();
}

std::string shape_text(const StoredTensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }

/// What a run of sluice has said of itself: the lines that tell its layout and its settings.
void print_run(const RunDescription& run) {
  const RunConfig& c = run.config;
  std::printf("model    %s\n", c.model.c_str());
  std::printf("run      %d ranks: pp %d x dp %d x cp %d x tp %d, %d lots\n", c.ranks, c.stages, batch_ranks(c),
              c.context, c.tensor, c.lots);
  std::printf("data     %s, seed %llu, %lld tokens a sequence, %d sequences a step\n", c.data.c_str(),
              static_cast<unsigned long long>(c.seed), static_cast<long long>(c.sequence), c.batch);
  std::printf("settings %lld steps, lr %.4g to %.4g, beta %.4g and %.4g, eps %.4g, weight decay %.4g, clip %.4g\n",
              static_cast<long long>(c.steps), c.optimizer.lr, c.optimizer.lr_end, c.optimizer.beta1, c.optimizer.beta2,
              c.optimizer.eps, c.optimizer.weight_decay, c.optimizer.clip_norm);
}

}  // namespace

Status inspect_checkpoint(const std::string& path, bool tensors, bool json) {
  SLUICE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  const Manifest& m = checkpoint.manifest();
  const Result<SavedRun> saved = saved_run_from_json(m.run);
  std::uint64_t parameters = 0;
  for (const StoredTensor& t : m.tensors) parameters += t.rows() * t.columns();
  if (json) {
    Json files = Json::array(), list = Json::array();
    for (const StoredFile& file : m.files)
      files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"units", file.units.size()}});
    for (const StoredTensor& t : m.tensors) list.push_back({{"name", t.name}, {"shape", t.shape}});
    Json j{{"checkpoint", checkpoint.path()},
           {"step", m.step},
           {"parameters", parameters},
           {"dtype", dtype_name(m.formats.parameters)},
           {"moments", moment_format_name(m.formats.moments)},
           {"bytes", m.state_bytes()},
           {"files", files},
           {"model", Json::parse(m.model)},
           {"tensors", list}};
    if (saved.ok()) j["run"] = run_to_json(saved->run);
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("%s: step %llu, %s parameters in %s, moments in %s, %s in %zu file%s\n", checkpoint.path().c_str(),
              static_cast<unsigned long long>(m.step), format_count(static_cast<double>(parameters)).c_str(),
              dtype_name(m.formats.parameters), moment_format_name(m.formats.moments),
              format_bytes(m.state_bytes()).c_str(), m.files.size(), m.files.size() == 1 ? "" : "s");
  if (saved.ok())
    print_run(saved->run);
  else if (is_of_a_run(m.run))
    std::printf("run      what it says of the run that wrote it %s\n", saved.error().message.c_str());
  for (const StoredFile& file : m.files)
    std::printf("file     %s: %s, %zu unit%s, %s to %s\n", file.name.c_str(), format_bytes(file.bytes).c_str(),
                file.units.size(), file.units.size() == 1 ? "" : "s", file.units.front().name.c_str(),
                file.units.back().name.c_str());
  if (!tensors) std::printf("tensors  %zu; --tensors lists them\n", m.tensors.size());
  for (std::size_t i = 0; tensors && i < m.tensors.size(); ++i)
    std::printf("tensor   %s %s\n", m.tensors[i].name.c_str(), shape_text(m.tensors[i]).c_str());
  return success();
}

void add_checkpoint_save(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(checkpoint, "save", "save the states of a run as a checkpoint",
                                 "  sluice checkpoint save out ./checkpoints\n"
                                 "RUN may be stopped or crashed: then the step is saved that it would go on from, "
                                 "every block verified. Where it goes\n"
                                 "on in another process, that one is asked, and saves after its next step. DIR/step-N "
                                 "appears whole or not at all.");
  auto o = std::make_shared<SaveOptions>();
  command->add_option("RUN", o->run, "directory of the run")->required();
  command->add_option("DIR", o->directory, "directory of checkpoints, made if it is missing")->required();
  command->add_option("--sign", o->key, "sign it with this private key (see 'checkpoint sign')");
  command->add_flag("--json", o->json, "print JSON to standard output and nothing else");
  command->callback([o, &outcome] { outcome.finish("checkpoint save", save(*o)); });
}

void add_checkpoint_verify(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "verify", "read all of a checkpoint and compare its checksums",
      "  sluice checkpoint verify ./checkpoints/step-120\n"
      "  sluice checkpoint verify ./checkpoints     # the latest\n"
      "  sluice checkpoint verify out     # the latest of a run\n"
      "Exit status 0: every byte of the states is what was saved. 2: it is not, and the line names file, state,\n"
      "tensor and block.");
  auto o = std::make_shared<VerifyOptions>();
  command->add_option("CHECKPOINT", o->paths, "checkpoints, or directories of them")->required();
  command->add_option("--verify-with", o->key,
                      "first: whether every file was signed by the owner of this public key (see 'checkpoint sign')");
  command->add_option("--io", o->io, "how the drive is asked")
      ->check(one_of({"auto", "io_uring", "libaio", "threads"}));
  command->add_option("--queue-depth", o->depth, "requests in flight (default: 32)")->check(at_least(1));
  command->add_flag("--json", o->json, "print JSON to standard output and nothing else");
  command->callback([o, &outcome] { outcome.finish("checkpoint verify", verify(*o)); });
}

void add_checkpoint_sign(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "sign", "sign a checkpoint, for who takes it elsewhere",
      "  openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem\n"
      "  sluice checkpoint sign ./checkpoints/step-120 --sign key.pem\n"
      "  sluice checkpoint verify ./checkpoints/step-120 --verify-with public.pem\n"
      "Checksums find damage. A signature (Ed25519, of SHA-256 of all files) also finds what somebody has changed.");
  auto o = std::make_shared<SignOptions>();
  command->add_option("CHECKPOINT", o->path, "a checkpoint, or a directory of them")->required();
  command->add_option("--sign", o->key, "private key, a PEM file")->required();
  command->callback([o, &outcome] { outcome.finish("checkpoint sign", sign(*o)); });
}

void add_checkpoint_list(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(checkpoint, "list", "the checkpoints in a directory",
                                 "  sluice checkpoint list ./checkpoints\n"
                                 "  sluice checkpoint list out     # those of a run");
  auto o = std::make_shared<ListOptions>();
  command->add_option("DIR", o->directory, "directory of checkpoints, or of a run")->required();
  command->add_flag("--json", o->json, "print JSON to standard output and nothing else");
  command->callback([o, &outcome] { outcome.finish("checkpoint list", list(*o)); });
}

void add_checkpoint_prune(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(checkpoint, "prune", "remove all but the last checkpoints",
                                 "  sluice checkpoint prune ./checkpoints --keep 3\n"
                                 "The one that LATEST names stays.");
  auto o = std::make_shared<PruneOptions>();
  command->add_option("DIR", o->directory, "directory of checkpoints, or of a run")->required();
  command->add_option("--keep", o->keep, "how many stay")->required()->check(at_least(1));
  command->add_flag("--json", o->json, "print JSON to standard output and nothing else");
  command->callback([o, &outcome] { outcome.finish("checkpoint prune", prune(*o)); });
}

}  // namespace sluice::tools
