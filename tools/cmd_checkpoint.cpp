// sluice checkpoint: what a run has left, looked at and turned into a model for other programs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/states/export_run.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

constexpr std::uint64_t shard_bytes_min = 1u << 20;  // else a slip of the unit makes a million files

struct Options {
  std::string run, dtype;
  ExportOptions to;
  bool json = false, tensors = false;
};

const char* place_name(StoredWeights::Place place) {
  switch (place) {
    case StoredWeights::Place::model: return "model";
    case StoredWeights::Place::slots: return "slots";
    case StoredWeights::Place::saved: return "saved";
  }
  return "?";
}

/// Where the directory lies when links are followed: it is replaced as a whole.
std::string target_path(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  return error ? absolute_path(path) : real;
}

Status export_checkpoint(Options options) {
  options.to.directory = target_path(options.to.directory);
  if (options.dtype == "f32") options.to.dtype = Dtype::f32;
  if (options.dtype == "bf16") options.to.dtype = Dtype::bf16;
  if (options.dtype == "f16") options.to.dtype = Dtype::f16;
  if (options.to.shard_bytes_max < shard_bytes_min)
    return bad_request("--max-shard-size " + std::to_string(options.to.shard_bytes_max) + " is less than 1MiB");
  SLUICE_TRY(check_export_target(options.to.directory, options.to.force));
  SLUICE_ASSIGN(const RunDirectory directory, RunDirectory::open(absolute_path(options.run)));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const RestoreListener listener = on_line(line, stop);
  SLUICE_ASSIGN(const auto weights, StoredWeights::open(directory, listener));
  const auto result = export_run(*weights, options.to, listener);
  line.finish();
  if (!result.ok()) return result.error();
  if (options.json) {
    const nlohmann::ordered_json j{{"directory", options.to.directory},
                                   {"step", result->step},
                                   {"steps", weights->run().config.steps},
                                   {"dtype", dtype_name(result->dtype)},
                                   {"parameters", result->parameters},
                                   {"bytes", result->data_bytes},
                                   {"files", result->files}};
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("%s: step %llu of %lld, %s parameters in %s, %s in %zu files\n", options.to.directory.c_str(),
              static_cast<unsigned long long>(result->step), static_cast<long long>(weights->run().config.steps),
              format_count(static_cast<double>(result->parameters)).c_str(), dtype_name(result->dtype),
              format_bytes(result->data_bytes).c_str(), result->files.size());
  return success();
}

Status inspect(const Options& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.run + "/run.json", ignored))
    return inspect_checkpoint(absolute_path(options.run), options.tensors, options.json);
  SLUICE_ASSIGN(const RunDirectory directory, RunDirectory::open(absolute_path(options.run)));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const RestoreListener listener = on_line(line, stop);
  SLUICE_ASSIGN(const auto weights, StoredWeights::open(directory, listener));
  SLUICE_TRY(weights->verify(listener));
  line.finish();
  const RunConfig& config = weights->run().config;
  const bool complete = weights->place() == StoredWeights::Place::model;
  if (options.json) {
    const nlohmann::ordered_json j{{"run", directory.path()},
                                   {"model", config.model},
                                   {"parameters", weights->model().parameters},
                                   {"dtype", dtype_name(weights->dtype())},
                                   {"step", weights->step()},
                                   {"steps", config.steps},
                                   {"complete", complete},
                                   {"kept_in", place_name(weights->place())},
                                   {"fp32_masters", weights->has_masters()}};
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("%s: %s, %s parameters in %s\nstep     %llu of %lld, %s\n", directory.path().c_str(),
              config.model.c_str(), format_count(static_cast<double>(weights->model().parameters)).c_str(),
              dtype_name(weights->dtype()), static_cast<unsigned long long>(weights->step()),
              static_cast<long long>(config.steps),
              complete                                          ? "complete: the model is there, the states are gone"
              : weights->place() == StoredWeights::Place::slots ? "committed to the swap file, and whole"
                                                                : "saved when it was stopped, and whole");
  return success();
}

void add_export(CLI::App& checkpoint, Outcome& outcome) {
  CLI::App* command = add_command(
      checkpoint, "export", "write a run's model as a Hugging Face directory",
      "  sluice checkpoint export out ./model\n"
      "  sluice checkpoint export out ./model --dtype f32 --max-shard-size 2GiB\n"
      "RUN may be complete, stopped or crashed: then the step is exported that it would go on from, and it can still\n"
      "go on. What is read is verified against its checksums. Needs less than 256 MiB of memory whatever the model's\n"
      "size, and the room of the model on the drive. config.json, tokenizer files and generation_config.json come\n"
      "along; all of it is in DIR, or nothing is, and what killed exports to it have left beside it (DIR.tmp-*) goes.");
  auto options = std::make_shared<Options>();
  command->add_option("RUN", options->run, "directory of the run")->required();
  command->add_option("DIR", options->to.directory, "directory to write: new, or empty")->required();
  command
      ->add_option("--dtype", options->dtype,
                   "of the weights (default: the run's). bf16: the parameters that training computed with, those of an "
                   "fp32 run rounded to nearest even; f32: the fp32 masters, which a complete bf16 run has no more; "
                   "f16: rounded from the same, of a complete bf16 run from its parameters")
      ->check(one_of({"f32", "bf16", "f16"}));
  add_size(command, "--max-shard-size", &options->to.shard_bytes_max,
           "most bytes of weights in a file, beyond which there are several and an index (default: 5GB)");
  command->add_flag("--force", options->to.force, "replace an earlier export in DIR");
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint export", export_checkpoint(*options)); });
}

void add_inspect(CLI::App& checkpoint, Outcome& outcome) {
  CLI::App* command =
      add_command(checkpoint, "inspect", "what a run has left, or what a checkpoint holds",
                  "  sluice checkpoint inspect out\n"
                  "  sluice checkpoint inspect ./checkpoints/step-120 --tensors\n"
                  "Of a run every state is read once, as 'train --resume' does before it goes on. Of a\n"
                  "checkpoint the manifest is: 'checkpoint verify' reads the rest.");
  auto options = std::make_shared<Options>();
  command->add_option("RUN", options->run, "directory of a run, a checkpoint, or a directory of checkpoints")
      ->required();
  command->add_flag("--tensors", options->tensors, "of a checkpoint: list its tensors and their shapes");
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint inspect", inspect(*options)); });
}

}  // namespace

void add_checkpoint(CLI::App& app, Outcome& outcome) {
  CLI::App* checkpoint = add_command(app, "checkpoint", "save, verify and look at checkpoints, and export models", "");
  checkpoint->require_subcommand(1);
  add_checkpoint_save(*checkpoint, outcome);
  add_checkpoint_list(*checkpoint, outcome);
  add_inspect(*checkpoint, outcome);
  add_checkpoint_verify(*checkpoint, outcome);
  add_export(*checkpoint, outcome);
  add_checkpoint_prune(*checkpoint, outcome);
  add_checkpoint_reshape(*checkpoint, outcome);
  add_checkpoint_diff(*checkpoint, outcome);
}

}  // namespace sluice::tools
