// sluice train
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/trainer.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/terminal.h"
#include "tools/wear_report.h"

namespace sluice::tools {
namespace {

/// Shows the run: a progress line, evaluations and notes above it; with --json one object per step on standard output.
class Screen final : public TrainObserver {
 public:
  Screen(const RunConfig& config) : config_(config), line_(10, !config.json) {}

  void note(const std::string& text) override { line_.note(text); }
  void progress(const std::string& what, double fraction) override { line_.task(what, fraction); }
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
  const auto steps = static_cast<std::uint64_t>(result.steps);
  return drive_wear(result.nvme_write_bytes / steps, result.seconds / static_cast<double>(steps), config.drive_tbw);
}

Status report(const RunConfig& config, const TrainResult& result, Engine& engine) {
  const std::size_t drives = result.steps > 0 ? config.nvme.size() : 0;
  if (config.json) {
    SLUICE_ASSIGN(const std::uint64_t state_hash, engine.state_hash());
    nlohmann::ordered_json j;
    j["done"] = !result.interrupted;
    j["steps"] = result.steps;
    j["loss"] = result.loss;
    j["eval_loss"] = result.eval_loss;
    char hash[32];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(state_hash));
    j["state_hash"] = hash;
    if (drives > 0) j["wear"] = wear_json(measured_wear(config, result));
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("validation loss %.4f nats/token (perplexity %.3f) after %lld steps\n", result.eval_loss,
              std::exp(result.eval_loss), static_cast<long long>(result.steps));
  if (drives > 0)
    std::printf("wear     %s\n", to_text(measured_wear(config, result), "at the measured rate", drives).c_str());
  if (!config.run.empty()) std::printf("model    %s/model.safetensors\n", config.run.c_str());
  if (!config.metrics.empty()) std::printf("metrics  %s\n", config.metrics.c_str());
  if (!config.trace.empty()) std::printf("trace    %s (open in ui.perfetto.dev)\n", config.trace.c_str());
  return success();
}

Status train(const RunOptions& options) {
  SLUICE_ASSIGN(const RunConfig config, resolve(options));
  const std::atomic<bool>& stop = stop_on_signals();
  Screen screen(config);
  SLUICE_ASSIGN(auto run, prepare(config, Purpose::train, [&](const std::string& text) { screen.note(text); }));
  if (!run->search.fits) return does_not_fit(*run);
  screen.note(summary(*run));
  if (const std::size_t drives = config.nvme.size(); drives > 0)
    screen.note("drive wear: " + to_text(predicted_wear(*run), predicted_rate, drives));
  SLUICE_ASSIGN(auto trainer, Trainer::create(*run, screen));
  auto result = trainer->run(stop);
  screen.finish();
  if (!result.ok()) return result.error();
  SLUICE_TRY(report(config, *result, trainer->engine()));
  if (result->interrupted)
    return Error{ErrorCode::cancelled, "stopped by a signal after step " + std::to_string(result->steps) + " of " +
                                           std::to_string(config.steps)};
  return success();
}

}  // namespace

void add_train(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      add_command(app, "train", "train or fine-tune a model under memory budgets",
                  "  sluice train --model llama-25m --data book.txt --run out --steps 200 \\\n"
                  "      --device-memory 96MiB --host-memory 64MiB --nvme /mnt/nvme\n"
                  "  sluice train --model ./Llama-3.2-1B --init ./Llama-3.2-1B --data tokens.bin --run out \\\n"
                  "      --device-memory 3GiB --host-memory 1GiB --nvme /nvme0,/nvme1 --seq 2048 --batch 4");
  auto options = std::make_shared<RunOptions>();
  RunConfig& c = options->config;
  add_model_options(command, options.get());
  command->add_option("--data", c.data, "text, or a token file made by 'sluice data tokenize'")->required();
  command->add_option("--run", c.run, "directory for what the run leaves behind: config.json, model.safetensors");
  command->add_option("--metrics", c.metrics, "file for one JSON object per step");
  command->add_option("--trace", c.trace, "file for the predicted and measured timeline of the last step");
  command->add_option("--hash", c.hash_every, "hash all parameters and states every N steps")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--eval-every", c.eval_every, "evaluate held-out text every N steps (always at the end)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--eval-batches", c.eval_batches, "batches per evaluation")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_batch_options(command, options.get());
  add_training_options(command, options.get());
  command->add_option("--delay-seed", c.delay_seed, "delay ops at random, from this seed: results must not change")
      ->group("Testing");
  command->callback([options, &outcome] { outcome.finish("train", train(*options)); });
}

}  // namespace sluice::tools
