// sluice train
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/run_config_json.h"
#include "src/train/trainer.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/terminal.h"
#include "tools/values.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

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
    char text[256];
    std::snprintf(text, sizeof text,
                  "step %lld/%lld  loss %.4f  %s tokens/s  efficiency %.2f  device %s  host %s  nvme %s",
                  static_cast<long long>(r.step), static_cast<long long>(config_.steps), r.loss,
                  format_count(r.tokens_per_second).c_str(), r.efficiency, format_bytes(r.device_peak_bytes).c_str(),
                  format_bytes(r.host_peak_bytes).c_str(), format_bytes(r.nvme_peak_bytes).c_str());
    line_.update(text, static_cast<double>(r.step) / static_cast<double>(config_.steps));
  }
  void evaluated(std::int64_t step, double loss) override {
    char text[160];
    std::snprintf(text, sizeof text, "step %lld: validation loss %.4f (perplexity %.3f)", static_cast<long long>(step),
                  loss, std::exp(loss));
    line_.note(text);
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
  const auto ranks = static_cast<std::uint64_t>(run.workload.ranks);
  char text[320];
  std::snprintf(
      text, sizeof text,
      "%s: %s parameters; %d micro-batches in groups of %d; arenas: device %s, host %s, nvme %s; predicted %s a "
      "step (bound %s, %s)",
      run.config.model.c_str(), format_count(static_cast<double>(run.model.parameters)).c_str(),
      run.workload.micro_batches, s.group, format_bytes(run.search.needs.device).c_str(),
      format_bytes(run.search.needs.host * ranks).c_str(), format_bytes(run.search.needs.nvme * ranks).c_str(),
      format_seconds(run.predicted.step_seconds).c_str(), format_seconds(run.predicted.bound_seconds).c_str(),
      resource_names[static_cast<std::size_t>(run.predicted.bottleneck)]);
  return text;
}

Wear measured_wear(const RunConfig& config, const TrainResult& result) {
  const auto steps = static_cast<std::uint64_t>(result.timed_steps);
  return drive_wear(result.nvme_write_bytes / steps, result.seconds / static_cast<double>(steps), config.drive_tbw);
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
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("validation loss %.4f nats/token (perplexity %.3f) after %lld steps\n", result.eval_loss,
              std::exp(result.eval_loss), static_cast<long long>(result.steps));
  if (drives > 0)
    std::printf("wear     %s\n", to_text(measured_wear(config, result), "at the measured rate", drives).c_str());
  if (!config.run.empty()) std::printf("model    %s/model.safetensors\n", config.run.c_str());
  const std::string metrics =
      config.metrics.empty() && !config.run.empty() ? config.run + "/metrics.jsonl" : config.metrics;
  if (!metrics.empty()) std::printf("metrics  %s\n", metrics.c_str());
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
                           : "; nothing is kept, because there was no --run DIR to keep it in";
  return Error{ErrorCode::cancelled, text};
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
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("the run is complete: validation loss %.4f nats/token after %lld steps\nmodel    %s/model.safetensors\n",
              result["eval_loss"].is_number() ? result["eval_loss"].get<double>() : std::nan(""),
              result["steps"].get<long long>(), config.run.c_str());
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
  return "durable: every step survives a crash; the second slots take " + format_bytes(durable_slot_bytes(run.main)) +
         " of the drive";
}

/// A run that is in the directory goes on; else the options describe a new one.
Result<std::unique_ptr<Prepared>> prepare_run(const RunConfig& config, const RunDirectory& directory, bool kernels_anew,
                                              const Progress& progress) {
  if (!directory.run()) {
    if (config.model.empty()) return bad_request("--model is missing: give a preset, a config.json or a directory");
    if (config.data.empty()) return bad_request("--data is missing: give text or a token file");
    return prepare(config, Purpose::train, progress);
  }
  const RunDescription& run = *directory.run();
  const DriveLayout layout{run.block_bytes, run.stripe_weights};
  SLUICE_ASSIGN(auto prepared, prepare_with(config, Purpose::train, run.schedule, &layout, progress));
  if (!kernels_anew && run.device == prepared->workload.device) prepared->kernels = run.kernels;
  if (prepared->workload.durable && directory.has_commits())
    SLUICE_TRY(Engine::check_swap(*prepared, swap_name(run.id)));
  return prepared;
}

/// The batch of a run that goes on decides what --schedule means.
RunOptions with_batch_of(const RunConfig& run, RunOptions options, const std::set<std::string>& given) {
  if (!given.contains("--batch")) options.config.batch = run.batch;
  if (!given.contains("--micro-batch")) options.config.micro_batch = run.micro_batch;
  if (!given.contains("--ranks")) options.config.ranks = run.ranks;
  return options;
}

/// The options, or those of the run in the directory with what may change laid over it.
Result<RunConfig> find_config(const RunOptions& options, const std::set<std::string>& given,
                              const RunDirectory& directory) {
  const bool has_run = directory.run().has_value();
  if (options.resume && options.config.run.empty())
    return bad_request("--resume needs the directory of the run: add --run DIR");
  if (options.resume && !has_run)
    return bad_request("--run " + directory.path() + " holds no run to go on with; leave out --resume to start one");
  if (!has_run) {
    SLUICE_ASSIGN(const RunConfig config, resolve(options));
    return with_document_mask(config);
  }
  const RunConfig& stored = directory.run()->config;
  SLUICE_ASSIGN(const RunConfig config, resolve(with_batch_of(stored, options, given)));
  Result<RunConfig> merged = continued(stored, config, given);
  if (merged.ok()) return merged;
  return bad_request(merged.error().message + "; leave the option out to go on, or give another --run DIR");
}

Status train(const RunOptions& options, const std::set<std::string>& given) {
  RunDirectory directory;
  if (!options.config.run.empty()) {
    SLUICE_ASSIGN(directory, RunDirectory::open(absolute_path(options.config.run)));
  }
  SLUICE_ASSIGN(const RunConfig config, find_config(options, given, directory));
  if (directory.run()) {
    SLUICE_ASSIGN(const auto result, directory.result());
    if (result && config.steps > (*result)["steps"].get<std::int64_t>())
      return bad_request("--steps " + std::to_string(config.steps) + ": the run in " + config.run +
                         " is complete after " + (*result)["steps"].dump() +
                         ", its states are gone; start another from its model with --init " + config.run);
    if (result) return report_complete(config, directory, *result);
    SLUICE_TRY(directory.check_place());
  }
  SLUICE_TRY(check_outputs(config));
  Screen screen(config);
  if (directory.run()) screen.hold();
  SLUICE_ASSIGN(auto run, prepare_run(config, directory, options.kernels_anew,
                                      [&](const std::string& text) { screen.note(text); }));
  if (!run->search.fits) return does_not_fit(*run);
  screen.note(summary(*run));
  screen.note(durability(*run, directory));
  if (const std::size_t drives = config.nvme.size(); drives > 0)
    screen.note("drive wear: " + to_text(predicted_wear(*run), predicted_rate, drives));
  // Until here a signal ends the process at once: nothing has been touched.
  const std::atomic<bool>& stop = stop_on_signals();
  SLUICE_ASSIGN(auto trainer, Trainer::create(*run, screen, config.run.empty() ? nullptr : &directory, &stop));
  screen.release();
  auto result = trainer->run(stop);
  screen.finish();
  if (!result.ok()) return result.error();
  return result->interrupted ? report_interrupted(config, *result) : report(config, *result, trainer->engine());
}

}  // namespace

void add_train(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      add_command(app, "train", "train or fine-tune a model under memory budgets",
                  "  sluice train --model llama-25m --data book.txt --run out --steps 200 \\\n"
                  "      --device-memory 96MiB --host-memory 64MiB --nvme /mnt/nvme\n"
                  "  sluice train --model ./Llama-3.2-1B --init ./Llama-3.2-1B --data tokens.bin --run out \\\n"
                  "      --device-memory 3GiB --host-memory 1GiB --nvme /nvme0,/nvme1 --seq 2048 --batch 4\n"
                  "  sluice train --run out --resume     # go on after a crash, a kill or Ctrl-C");
  auto options = std::make_shared<RunOptions>();
  RunConfig& c = options->config;
  add_model_options(command, options.get());
  command->add_option("--data", c.data,
                      "text or .jsonl, bytes as tokens, or a token file (sluice, Megatron-LM, llm.c, nanoGPT)");
  command->add_flag("--resume", options->resume, "go on with the run in --run; every other option may be left out")
      ->group("Run");
  command
      ->add_option("--max-skipped", c.skip_limit,
                   "stop after so many steps in a row whose loss or gradient is not finite; before that they are "
                   "skipped where the run is durable (else the first one stops the run)")
      ->check(more_than(0))
      ->capture_default_str()
      ->group("Run");
  command
      ->add_flag("--kernels-anew", options->kernels_anew,
                 "a run that goes on on a GPU takes the kernels that are quickest there now, where those that it began "
                 "with are another library's; bits may differ from there on")
      ->group("Run");
  command->add_option("--metrics", c.metrics,
                      "file for one JSON object per step (default with --run: metrics.jsonl there)");
  command->add_option("--trace", c.trace, "file for the predicted and measured timeline of the last step");
  command->add_option("--hash", c.hash_every, "hash all parameters and states every N steps")->check(at_least(0));
  command->add_option("--eval-every", c.eval_every, "evaluate held-out text every N steps (always at the end)")
      ->check(at_least(0));
  command->add_option("--eval-batches", c.eval_batches, "batches per evaluation")
      ->check(more_than(0))
      ->capture_default_str();
  add_batch_options(command, options.get());
  add_training_options(command, options.get());
  command->add_option("--delay-seed", c.delay_seed, "delay ops at random, from this seed: results must not change")
      ->group("Testing");
  command->add_option("--sync-delay", options->sync_delay_ms, "milliseconds that every fdatasync takes longer")
      ->check(CLI::Range(0, 10000))
      ->group("Testing");
  command->add_option("--poison-steps", options->poison, "make the gradients of these steps NaN, like 5,6")
      ->group("Testing");
  command->callback(
      [options, command, &outcome] { outcome.finish("train", train(*options, given_options(*command))); });
}

}  // namespace sluice::tools
