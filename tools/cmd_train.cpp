// sluice train
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/check_request.h"
#include "src/train/metrics_file.h"
#include "src/train/new_run_files.h"
#include "src/train/trainer.h"
#include "tools/commands.h"
#include "tools/described_run.h"
#include "tools/run_home.h"
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
  Screen(const RunConfig& config) : config_(config), line_(10, !config.json) {}

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
    if (config_.json) {
      std::printf("%s\n", to_json_line(r).c_str());
      std::fflush(stdout);
      return;
    }
    line_.update(step_forms(r, config_.steps), static_cast<double>(r.step) / static_cast<double>(config_.steps));
  }
  void evaluated(std::int64_t step, const SetLoss& loss) override {
    line_.note("step " + std::to_string(step) + ": " + shown(loss, ""));
  }
  void finish() { line_.finish(); }

 private:
  const RunConfig& config_;
  ProgressLine line_;
  bool holding_ = false;
  std::vector<std::string> held_;
};

std::string summary(const Prepared& run) {
  const Schedule& s = run.search.schedule;
  const auto ranks = static_cast<std::uint64_t>(run.workload.ranks());
  return fmt::format(
      "{}: {} parameters; {} micro-batches in groups of {}; arenas: device {}, host {}, nvme {}; predicted {} a step "
      "(bound {}, {})",
      run.config.model, format_count(static_cast<double>(run.model.parameters)), run.workload.micro_batches, s.group,
      format_bytes(run.search.needs.device), format_bytes(run.search.needs.host * ranks),
      format_bytes(run.search.needs.nvme * ranks), format_seconds(run.predicted.step_seconds),
      format_seconds(run.predicted.bound_seconds), resource_names[static_cast<std::size_t>(run.predicted.bottleneck)]);
}

Wear measured_wear(const RunConfig& config, const TrainResult& result) {
  const auto steps = static_cast<std::uint64_t>(result.timed_steps);
  return drive_wear(result.nvme_write_bytes / steps, result.seconds / static_cast<double>(steps), config.drive_tbw);
}

std::string model_path(const RunConfig& config) { return config.run + "/model.safetensors"; }

void print_losses(const std::vector<SetLoss>& losses, std::int64_t steps) {
  for (const SetLoss& loss : losses)
    std::printf("%s after %lld steps\n", shown(loss, " nats/token").c_str(), static_cast<long long>(steps));
  if (losses.empty())
    std::printf("%lld steps are done; nothing was evaluated, as nothing is held out and there is no --eval-data\n",
                static_cast<long long>(steps));
}

Status report(const RunConfig& config, const TrainResult& result, Engine& engine) {
  const std::size_t drives = result.timed_steps > 0 ? config.nvme.size() : 0;
  if (config.json) {
    nlohmann::ordered_json j;
    j["done"] = true;
    TrainResult whole = result;
    if (!whole.state_hash) {
      SLUICE_ASSIGN(whole.state_hash, engine.state_hash());
    }
    j.update(to_json(whole));
    if (drives > 0) j["wear"] = wear_json(measured_wear(config, result));
    j["model"] = config.run.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(model_path(config));
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  print_losses(result.eval, result.steps);
  if (drives > 0)
    std::printf("wear     %s\n", to_text(measured_wear(config, result), "at the measured rate", drives).c_str());
  std::printf("model    %s\n", config.run.empty() ? "discarded (--run none)" : model_path(config).c_str());
  if (!metrics_path(config).empty()) std::printf("metrics  %s\n", metrics_path(config).c_str());
  if (!config.trace.empty()) std::printf("trace    %s (open in ui.perfetto.dev)\n", config.trace.c_str());
  return success();
}

/// The run was stopped: how far it came and how to go on.
Status report_interrupted(const RunConfig& config, const TrainResult& result) {
  if (config.json) {
    const nlohmann::ordered_json j{{"done", false}, {"steps", result.steps}, {"resumable", result.resumable}};
    std::printf("%s\n", j.dump().c_str());
  }
  std::string text =
      "stopped by a signal after step " + std::to_string(result.steps) + " of " + std::to_string(config.steps);
  text += result.resumable ? "; to go on: sluice train --run " + config.run + " --resume"
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
  SwapOptions swap;
  swap.directories = config.nvme;
  swap.name = swap_name(directory.run()->id);
  SLUICE_TRY(SwapFile::remove(swap));
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
                       (directory.has_snapshot() ? "go on from what was last saved" : "start over");
    if (run.config.run.empty()) return text;
    text += ", a signal saves the run";
    // Two steps may be under way, their updates and the file come after; drives write about a gigabyte a second.
    const double seconds = 2 * run.predicted.step_seconds + 14e-9 * static_cast<double>(run.model.parameters);
    return seconds < 20 ? text : text + ", which may take " + format_seconds(seconds);
  }
  return "durable: every step survives a crash; the second slots take " +
         format_bytes(durable_slot_bytes(run.main) * run.workload.ranks()) + " of the drive";
}

/// With its kernels and its swap file, where it goes on.
Result<std::unique_ptr<Prepared>> prepare_run(const RunConfig& config, const RunDirectory& directory, bool kernels_anew,
                                              const Progress& progress) {
  SLUICE_ASSIGN(auto prepared, prepare_described(config, directory, progress));
  if (!directory.run()) return prepared;
  const RunDescription& run = *directory.run();
  if (!kernels_anew && run.device == prepared->workload.device) prepared->kernels = run.kernels;
  // For other ranks there is going to be another one.
  const bool is_kept = !directory.has_snapshot() && prepared->config.ranks == run.config.ranks;
  if (prepared->workload.durable && directory.has_commits() && is_kept)
    SLUICE_TRY(Engine::check_swap(*prepared, swap_name(run.id)));
  return prepared;
}

/// A new run that is refused here, or stopped before it has begun, leaves nothing.
Result<std::unique_ptr<Trainer>> begin(const Prepared& run, Screen& screen, RunDirectory& directory, bool goes_on,
                                       const std::atomic<bool>& stop) {
  const RunConfig& c = run.config;
  const NewRunFiles made(c.run, metrics_path(c));
  if (!c.run.empty() && !goes_on) SLUICE_TRY(directory.make());
  auto trainer = Trainer::create(run, screen, c.run.empty() ? nullptr : &directory, &stop);
  if (!trainer.ok() && !goes_on && !directory.run()) made.remove();
  return trainer;
}

Status train(RunOptions options, const std::set<std::string>& given) {
  SLUICE_TRY(check_named(options, true));
  NewRunHome home;
  if (options.config.run.empty()) {
    SLUICE_ASSIGN(home, NewRunHome::find(options.config.model));
    options.config.run = home.path();
  }
  RunDirectory directory;
  if (options.config.run != keep_nothing) {
    SLUICE_ASSIGN(directory, RunDirectory::open(absolute_path(options.config.run)));
  }
  SLUICE_ASSIGN(RunConfig config, described_config(options, given, directory, true));
  const bool goes_on = directory.run().has_value();
  if (goes_on) {
    SLUICE_ASSIGN(const auto result, directory.result());
    if (result) return report_complete(config, directory, *result);
  }
  SLUICE_ASSIGN(CheckedRequest checked,
                check_request({.config = config, .from_scratch = options.from_scratch, .goes_on = goes_on}));
  config = std::move(checked.config);
  SLUICE_TRY(check_metrics(config, &directory));
  Screen screen(config);
  screen.hold();
  screen.note(told_at_start(config.run));
  if (!goes_on) screen.note(checked.weights);
  SLUICE_ASSIGN(auto run, prepare_run(config, directory, options.kernels_anew, [&](const std::string& text) {
                  if (!goes_on) screen.release();
                  screen.note(text);
                }));
  if (!run->search.fits) return does_not_fit(*run);
  screen.note(summary(*run));
  screen.note(durability(*run, directory));
  if (const std::size_t drives = config.nvme.size(); drives > 0)
    screen.note("drive wear: " + to_text(predicted_wear(*run), predicted_rate, drives));
  // Until here a signal ends the process at once: nothing has been touched.
  const std::atomic<bool>& stop = stop_on_signals();
  SLUICE_ASSIGN(auto trainer, begin(*run, screen, directory, goes_on, stop));
  screen.release();
  auto result = trainer->run(stop);
  screen.finish();
  if (!result.ok()) return result.error();
  return result->interrupted ? report_interrupted(config, *result) : report(config, *result, trainer->engine());
}

}  // namespace

void add_train(CLI::App& app, Outcome& outcome) {
  CLI::App* command = add_command(
      app, "train", "train or fine-tune a model under memory budgets",
      "  sluice train --model llama-25m --data book.txt --run out --steps 200 \\\n"
      "      --device-memory 96MiB --host-memory 64MiB --nvme /mnt/nvme\n"
      "  sluice train --model ./Llama-3.2-1B --data tokens.bin --run out \\\n"
      "      --device-memory 3GiB --host-memory 1GiB --nvme /nvme0,/nvme1 --seq 2048 --batch 4\n"
      "  sluice train --run out --resume     # go on after a crash, a kill or Ctrl-C\n"
      "  sluice train --run out --resume --steps 400 --lr 1e-4     # and from there on otherwise\n"
      "  sluice train --model llama-25m --data book.txt --run out --ranks 4\n"
      "  sluice train --run out --resume --ranks 2     # to the same bits\n"
      "  sluice train --model llama-tiny --data book.txt --steps 5 --run none     # a trial: nothing is kept\n"
      "\nWithout --run the run is kept in a new directory, like runs/llama-25m-2026-11-23T04-05-06.\n\n"
      "With --resume these may be others than before: --steps (not below where the run stands; the rate is\n"
      "then that of a run of so many steps), --lr, --lr-*, --warmup, --weight-decay, --beta*, --eps, --clip,\n"
      "--threads; they change what is learned from there on, and run.json keeps them with the step. --ranks\n"
      "too, to --lots divided by 1, 2, 4, ..., or to 1: that changes no bit, and lays the states out anew. At any\n"
      "time: --eval-*, --hash, --max-skipped, --trace, --device, --profile, --io, --queue-depth,\n"
      "--optimizer-threads, --drive-tbw; --data and --nvme where the run's own files were moved.\n"
      "What may not: --model, --init, --dtype, --moments (the states are of them), --seq, --batch,\n"
      "--micro-batch, --lots, --seed, --document-mask (which tokens a step takes), budgets, --durable and\n"
      "what places states (the run keeps its plan). For those start another run from the model:\n"
      "sluice checkpoint export out new, then train --model new.");
  auto options = std::make_shared<RunOptions>();
  add_train_options(command, options.get());
  command->callback(
      [options, command, &outcome] { outcome.finish("train", train(*options, given_options(*command))); });
}

}  // namespace sluice::tools
