// sluice train
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/size.h"
#include "src/train/request/arrangement.h"
#include "src/train/request/check_request.h"
#include "src/train/request/decided.h"
#include "src/train/request/machine_limits.h"
#include "src/train/request/saving.h"
#include "src/train/run/metrics_file.h"
#include "src/train/run/new_run_files.h"
#include "src/train/run/saved_states.h"
#include "src/train/run/trainer.h"
#include "tools/commands.h"
#include "tools/described_run.h"
#include "tools/launch.h"
#include "tools/layout.h"
#include "tools/packing_report.h"
#include "tools/phases.h"
#include "tools/run_home.h"
#include "tools/saving_report.h"
#include "tools/speculation_report.h"
#include "tools/step_line.h"
#include "tools/terminal.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

/// "validation loss 2.3456 nats/token (perplexity 10.440)", with its set unless that is what is held out.
std::string shown(const SetLoss& loss, const char* unit) {
  char text[96];
  std::snprintf(text, sizeof text, " %.4f%s (perplexity %.3f)", loss.loss, unit, std::exp(loss.loss));
  return "validation loss" + (loss.set == held_out_name ? "" : " of " + loss.set) + text;
}

/// Shows the run: a progress line, evaluations and notes above it; with --json one object per step on standard output.
class Screen final : public TrainObserver {
 public:
  explicit Screen(bool json) : json_(json), line_(10, !json) {}
  void set_steps(std::int64_t steps) { steps_ = steps; }

  void note(const std::string& text) override {
    if (holding_)
      held_.push_back(text);
    else
      line_.note(text);
  }
  void progress(const std::string& what, double fraction) override {
    release();
    line_.task(what, fraction);
  }
  /// Keep notes until work begins: who is refused before that reads one line.
  void hold() { holding_ = true; }
  void release() {
    holding_ = false;
    for (const std::string& text : held_) line_.note(text);
    held_.clear();
  }
  void step(const StepRecord& r) override {
    if (json_) {
      std::printf("%s\n", to_json_line(r).c_str());
      std::fflush(stdout);
      return;
    }
    line_.update(step_forms(r, steps_), static_cast<double>(r.step) / static_cast<double>(steps_));
  }
  void evaluated(std::int64_t step, const SetLoss& loss) override {
    line_.note("step " + std::to_string(step) + ": " + shown(loss, ""));
  }
  void finish() { line_.finish(); }

 private:
  bool json_;
  std::int64_t steps_ = 1;
  ProgressLine line_;
  bool holding_ = false;
  std::vector<std::string> held_;
};

std::string summary(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  const int slices = run.workload.slices();
  const auto arena = [&](Tier tier) { return format_bytes(run.arena_of_machine(tier).arena_bytes); };
  return fmt::format(
      "{}: {} parameters; {} micro-batches in groups of {}{}; arenas: device {}, host {}, nvme {}; predicted {} a step "
      "(bound {}, {})",
      run.config.model, format_count(static_cast<double>(run.model.parameters)), run.workload.sequence_batches(),
      s.group / slices, slices > 1 ? fmt::format(", each in {} slices", slices) : "", arena(Tier::device),
      arena(Tier::host), arena(Tier::nvme), format_seconds(run.step_seconds()),
      format_seconds(run.predicted().bound_seconds),
      resource_names[static_cast<std::size_t>(run.predicted().bottleneck)]);
}

Wear measured_wear(const Prepared& run, const TrainResult& result) {
  const auto steps = static_cast<std::uint64_t>(result.timed_steps);
  const std::uint64_t written = result.nvme_write_bytes + saved_to_drives(run, result.saves);
  return drive_wear(written / steps, result.seconds / static_cast<double>(steps), run.config.drive_tbw);
}

std::string model_path(const RunConfig& config) { return config.run + "/model.safetensors"; }

void print_losses(const std::vector<SetLoss>& losses, std::int64_t steps) {
  for (const SetLoss& loss : losses)
    std::printf("%s after %lld steps\n", shown(loss, " nats/token").c_str(), static_cast<long long>(steps));
  if (losses.empty())
    std::printf("%lld steps are done; nothing was evaluated, as nothing is held out and there is no --eval-data\n",
                static_cast<long long>(steps));
}

void report(const Prepared& run, const TrainResult& result) {
  const RunConfig& config = run.config;
  const std::size_t drives = result.timed_steps > 0 ? config.nvme.size() : 0;
  if (config.json) {
    nlohmann::ordered_json j;
    j["done"] = true;
    j.update(to_json(result));
    if (run.speculates()) j["repaired"] = result.repaired;
    if (drives > 0) j["wear"] = wear_json(measured_wear(run, result));
    j["model"] = config.run.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(model_path(config));
    std::printf("%s\n", j.dump().c_str());
    return;
  }
  print_losses(result.eval, result.steps);
  if (result.repaired > 0)
    std::printf("repairs  %s\n", fmt::format("{} of {} steps clipped where that was not expected, and were repaired",
                                             result.repaired, result.timed_steps)
                                     .c_str());
  if (drives > 0)
    std::printf("wear     %s\n", to_text(measured_wear(run, result), "at the measured rate", drives).c_str());
  std::printf("model    %s\n", config.run.empty() ? "discarded (--run none)" : model_path(config).c_str());
  if (!metrics_path(config).empty()) std::printf("metrics  %s\n", metrics_path(config).c_str());
  if (!config.trace.empty()) std::printf("trace    %s (open in ui.perfetto.dev)\n", config.trace.c_str());
}

/// The run was stopped: how far it came and how to go on.
Status report_interrupted(const RunConfig& config, const TrainResult& result, bool leads) {
  if (config.json && leads) {
    const nlohmann::ordered_json j{{"done", false}, {"steps", result.steps}, {"resumable", result.resumable}};
    std::printf("%s\n", j.dump().c_str());
  }
  std::string text =
      "stopped by a signal after step " + std::to_string(result.steps) + " of " + std::to_string(config.steps);
  const std::string launcher = config.ranks_of_node > 0 ? "mpirun -n " + std::to_string(config.ranks) + " " : "";
  text += result.resumable ? "; to go on: " + launcher + "sluice train --run " + config.run + " --resume"
                           : "; nothing is kept (--run none)";
  return Error{ErrorCode::cancelled, text};
}

/// What result.json has; that of an early version names no sets.
std::vector<SetLoss> losses_of(const nlohmann::ordered_json& result) {
  const auto number = [](const nlohmann::ordered_json& j) { return j.is_number() ? j.get<double>() : std::nan(""); };
  if (!result.contains("eval") || !result["eval"].is_object()) return {{held_out_name, number(result["eval_loss"])}};
  std::vector<SetLoss> losses;
  for (const auto& [set, loss] : result["eval"].items()) losses.push_back({set, number(loss)});
  return losses;
}

/// There is nothing left to do: say what came out, and remove what a killed process left behind.
Status report_complete(const RunConfig& config, const RunDirectory& directory, const nlohmann::ordered_json& result) {
  SLUICE_TRY(directory.remove_state());
  SLUICE_TRY(remove_swap_files(directory.run()->id, config.nvme, 0));
  if (config.json) {
    nlohmann::ordered_json j{{"done", true}};
    j.update(result);
    j["model"] = model_path(config);
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("the run is complete\n");
  print_losses(losses_of(result), result["steps"].get<std::int64_t>());
  std::printf("model    %s\n", model_path(config).c_str());
  return success();
}

std::string durability(const Prepared& run, const RunDirectory& directory) {
  if (!run.workload.durable) {
    std::string text = "durable: " + run.durability + "; a crash would " +
                       (directory.has_saved()       ? "go on from what was last saved"
                        : run.config.save_every > 0 ? "go on from the last checkpoint"
                                                    : "start over");
    if (run.config.run.empty()) return text;
    text += ", a signal saves the run";
    // Two steps may be under way, their updates and the file come after; drives write about a gigabyte a second.
    const double seconds = 2 * run.step_seconds() + 14e-9 * static_cast<double>(run.model.parameters);
    return seconds < 20 ? text : text + ", which may take " + format_seconds(seconds);
  }
  return "durable: every step survives a crash; the second slots take " + format_bytes(durable_slot_bytes(run)) +
         " of the drive";
}

/// With its kernels and its swap files, where it goes on.
Result<std::unique_ptr<Prepared>> prepare_run(const RunConfig& config, const RunDirectory& directory, bool kernels_anew,
                                              const World* world, const Tell& progress) {
  SLUICE_ASSIGN(auto prepared, prepare_described(config, directory, progress));
  if (!directory.run()) return prepared;
  const RunDescription& run = *directory.run();
  if (!kernels_anew && run.device == prepared->workload.device) prepared->kernels = run.kernels;
  // For other ranks there are going to be others.
  const bool is_kept = !directory.has_saved() && is_laid_out_alike(prepared->config, run.config);
  const RankRange here = world == nullptr ? RankRange{0, prepared->workload.ranks()} : world->here();
  if (prepared->workload.durable && directory.has_commits() && is_kept)
    SLUICE_TRY(Engine::check_swap(*prepared, run.id, here));
  return prepared;
}

/// A run as its leader has decided it, or heard of it.
struct Run {
  std::unique_ptr<Prepared> prepared;
  PhasePlans phases;  ///< of who leads
  RunDirectory directory;
  bool goes_on = false;
  bool is_complete = false;  ///< it was before: that has been reported
};

/// Everything up to the plans: what is checked, measured and searched once. Nothing is touched.
Status decide(RunOptions options, const std::set<std::string>& given, const World* world, NewRunHome& home,
              Screen& screen, Run& run) {
  SLUICE_TRY(check_named(options, true));
  if (options.config.run.empty()) {
    SLUICE_ASSIGN(home, NewRunHome::find(options.config.model));
    options.config.run = home.path();
  }
  if (options.config.run != keep_nothing) {
    SLUICE_ASSIGN(run.directory, RunDirectory::open(absolute_path(options.config.run)));
  }
  SLUICE_ASSIGN(RunConfig config, described_config(options, given, run.directory, true));
  run.goes_on = run.directory.run().has_value();
  if (run.goes_on) {
    SLUICE_ASSIGN(const auto result, run.directory.result());
    run.is_complete = result.has_value();
    if (result) return report_complete(config, run.directory, *result);
  }
  config.ranks_of_node = options.config.ranks_of_node;
  const Request request{.config = config,
                        .from_scratch = options.from_scratch,
                        .goes_on = run.goes_on,
                        .watch = [&](const std::string& what, double fraction) { screen.progress(what, fraction); }};
  CheckedRequest checked;
  std::optional<LayoutAnswer> answer;
  SLUICE_ASSIGN(const bool looks_for_layout, wants_layout(options, given, config, run.goes_on));
  if (looks_for_layout) {
    SLUICE_ASSIGN(answer, find_layout(options, given, request, [&](const std::string& text) {
                    screen.release();
                    screen.note(text);
                  }));
    checked = answer->checked;
  } else {
    SLUICE_ASSIGN(checked, check_request(request));
  }
  screen.finish();
  config = std::move(checked.config);
  SLUICE_TRY(check_metrics(config, &run.directory));
  if (config.save_every > 0)
    SLUICE_TRY(check_checkpoints_of(run.goes_on ? &*run.directory.run() : nullptr, checkpoints_path(config)));
  screen.set_steps(config.steps);
  screen.hold();
  screen.note(told_at_start(config.run));
  if (!run.goes_on) screen.note(checked.weights);
  if (answer) screen.note("arrangement: " + layout_text(config) + " (sluice plan --layout auto shows the others)");
  if (answer) run.prepared = std::move(answer->layouts.found.front().run);
  if (!run.prepared) {
    const Tell tell = [&](const std::string& text) {
      if (!run.goes_on) screen.release();
      screen.note(text);
    };
    SLUICE_ASSIGN(run.prepared, prepare_run(config, run.directory, options.kernels_anew, world, tell));
  }
  if (!run.prepared->search.fits) return does_not_fit(*run.prepared);
  screen.note(summary(*run.prepared));
  screen.note(durability(*run.prepared, run.directory));
  if (const std::string packing = packing_text(*run.prepared); !packing.empty()) screen.note(packing);
  if (run.prepared->speculates()) screen.note(speculation_text(*run.prepared));
  if (const std::size_t drives = config.nvme.size(); drives > 0)
    screen.note("drive wear: " + to_text(predicted_wear(*run.prepared), predicted_rate, drives));
  if (const std::string saving = saving_text(*run.prepared); !saving.empty()) screen.note("checkpoints: " + saving);
  SLUICE_ASSIGN(run.phases, PhasePlans::prepare(*run.prepared, {}));
  for (const std::string& text : phase_texts(*run.prepared, run.phases)) screen.note(text);
  const bool moves = run.phases.any_move();
  // Rank 0 reads the states of all where they do not stay.
  const RunConfig& c = run.prepared->config;
  const int machine = ranks_of_machine(c), needed = ranks_with_all_states(c);
  if (!moves || !run.prepared->workload.durable || needed <= machine) return success();
  return bad_request(
      fmt::format("--seq-schedule: between two lengths, whose tiles differ, rank 0 reads the swap files of {} ranks, "
                  "and a machine has {}; give --durable off, whose states all ranks save",
                  needed, machine));
}

/// The same of the phase behind the one that has ended.
Status decide_next(Screen& screen, Run& run) {
  run.phases.go_on(run.prepared);
  run.goes_on = true;
  screen.note(phase_begins(*run.prepared));
  return check_arenas(*run.prepared);
}

/// What the leader has decided, as the other processes have it.
Status follow(const std::string& decided, const RunOptions& options, Run& run) {
  SLUICE_ASSIGN(run.prepared, prepare_from_text(decided, options.config));
  const std::string& path = run.prepared->config.run;
  if (!path.empty()) {
    SLUICE_ASSIGN(run.directory, RunDirectory::look(path));
  }
  return success();
}

/// A new run that is refused here, or stopped before it has begun, leaves nothing.
Result<std::unique_ptr<Trainer>> begin(Run& run, TrainObserver& observer, const std::atomic<bool>& stop, World* world) {
  const RunConfig& c = run.prepared->config;
  const bool leads = world == nullptr || world->leads();
  const NewRunFiles made(c.run, metrics_path(c));
  const Status place = leads && !c.run.empty() && !run.goes_on ? run.directory.make() : success();
  SLUICE_TRY(world == nullptr ? place : agree(*world, place));
  auto trainer = Trainer::create(*run.prepared, observer, c.run.empty() ? nullptr : &run.directory, &stop, world);
  if (!trainer.ok() && leads && !run.goes_on && !run.directory.run()) made.remove();
  return trainer;
}

/// Of a process that does not lead: nothing.
class Silence final : public TrainObserver {};

/// One phase of a run that has been decided, to its end or to where it was stopped.
Result<TrainResult> train_phase(Run& run, TrainObserver& observer, const std::atomic<bool>& stop, World* world,
                                const std::function<void()>& begun) {
  SLUICE_ASSIGN(auto trainer, begin(run, observer, stop, world));
  begun();
  SLUICE_ASSIGN(TrainResult result, trainer->run(stop));
  const bool is_over = !result.interrupted && !result.phase_ended;
  if (run.prepared->config.json && is_over && !result.state_hash) {
    SLUICE_ASSIGN(result.state_hash, trainer->engine().states().state_hash());
  }
  return result;
}

Status train(RunOptions options, const std::set<std::string>& given, World* world) {
  const bool leads = world == nullptr || world->leads();
  NewRunHome home;
  Run run;
  // The leader's screen shows what it has decided; the others' stay dark.
  Screen screen(options.config.json);
  Silence silence;
  TrainResult result;
  do {
    Status decided = !leads               ? success()
                     : result.phase_ended ? decide_next(screen, run)
                                          : decide(options, given, world, home, screen, run);
    if (world != nullptr) {
      SLUICE_TRY(agree(*world, decided));
      SLUICE_ASSIGN(const std::string text,
                    from_leader(*world, run.prepared ? decided_text(*run.prepared, Purpose::train) : ""));
      if (text.empty()) return success();
      if (!leads) decided = follow(text, options, run);
      decided = agree(*world, decided);
    }
    SLUICE_TRY(decided);
    if (run.is_complete) return success();
    run.prepared->follows_phase = result.phase_ended;
    // Until here a signal ends the process at once: nothing has been touched.
    const std::atomic<bool>& stop = stop_on_signals();
    auto phase =
        train_phase(run, leads ? static_cast<TrainObserver&>(screen) : silence, stop, world, [&] { screen.release(); });
    if (!phase.ok()) screen.finish();
    SLUICE_TRY(phase);
    phase->add(result);
    result = *std::move(phase);
  } while (result.phase_ended);
  screen.finish();
  if (result.interrupted) return report_interrupted(run.prepared->config, result, leads);
  if (leads) report(*run.prepared, result);
  return success();
}

}  // namespace

void add_train(Command& app, Outcome& outcome) {
  Command* command = add_command(
      app, "train", "train or fine-tune a model under memory budgets",
      "  sluice train --model llama-25m --data book.txt --run out --steps 200 \\\n"
      "      --device-memory 96MiB --host-memory 64MiB --nvme /mnt/nvme\n"
      "  sluice train --model ./Llama-3.2-1B --data tokens.bin --run out \\\n"
      "      --device-memory 3GiB --host-memory 1GiB --nvme /nvme0,/nvme1 --seq 2048 --batch 4\n"
      "  sluice train --run out --resume     # go on after a crash, a kill or Ctrl-C\n"
      "  sluice train --run out --resume --steps 400 --lr 1e-4     # and from there on otherwise\n"
      "  sluice train --model llama-25m --data book.txt --run out --ranks 4\n"
      "  sluice train --run out --resume --ranks 2     # to the same bits\n"
      "  sluice train --model llama-125m --data book.txt --run out --seq-schedule 256:500,1024:*   # short ones first\n"
      "  sluice train --model llama-125m --data chats.tokens --run out --steps 1000 \\\n"
      "      --seq-schedule 2-256:50,257-1024:50,...     # whole documents, long and short ones in turns\n"
      "  sluice train --model llama-125m --data book.txt --activations host --activation-dtype int8   # half the "
      "bytes\n"
      "  mpirun -n 4 sluice train --model llama-25m --data book.txt --run out     # ranks as processes\n"
      "  sluice train --model llama-tiny --data book.txt --steps 5 --run none     # a trial: nothing is kept\n"
      "\nWithout --run the run is kept in a new directory, like runs/llama-25m-2026-11-23T04-05-06.\n\n"
      "With --resume these may be others than before: --steps (not below where the run stands; the rate is\n"
      "then that of a run of so many steps), --lr, --lr-*, --warmup, --weight-decay, --beta*, --eps, --clip,\n"
      "--threads; they change what is learned from there on, and run.json keeps them with the step. --ranks\n"
      "too, to --lots divided by 1, 2, 4, ..., or to 1, --shard-group and --reduction: that changes no bit (with\n"
      "--reduce tree, which may change as well, and exact activations), and lays the states out anew. At any\n"
      "time: --eval-data, --eval-every, --eval-batches, --hash, --max-skipped, --trace, --device, --profile, --io,\n"
      "--queue-depth, --optimizer-threads, --drive-tbw; --data and --nvme where the run's own files were moved.\n"
      "Budgets, --durable and what fixes the plan may change too, to the same bits where activations are exact;\n"
      "--tp, --cp, --slices, --lots, --micro-batch, --dtype, --moments, --gradient-dtype and --activation-dtype, to\n"
      "others: the states are made anew from a copy.\n"
      "What may not: --model, --init, --seq, --batch, --seed, --document-mask, --eval-split (which tokens a step\n"
      "takes). For those start another run from the model: sluice checkpoint export out new, then train --model new.");
  auto options = std::make_shared<RunOptions>();
  add_train_options(command, options.get());
  command->callback([options, command, &outcome] {
    run_on_ranks("train", *options, given_options(*command), outcome,
                 [&](const std::set<std::string>& given, World* world) { return train(*options, given, world); });
  });
}

}  // namespace sluice::tools
