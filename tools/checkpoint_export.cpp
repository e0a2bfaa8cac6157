// sluice checkpoint export: the weights of a run or of a checkpoint for other programs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "sluice/size.h"
#include "src/train/states/checkpoint_weights.h"
#include "src/train/states/export_weights.h"
#include "src/train/states/stored_weights.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

constexpr std::uint64_t shard_bytes_min = 1u << 20;  // else a slip of the unit makes a million files

struct ExportArguments {
  std::string from, dtype;
  ExportOptions to;
  bool json = false;
};

/// A run's directory is opened as `directory`, and locked until that goes; of a checkpoint it stays as it is.
Result<std::unique_ptr<WholeWeights>> open_weights(const std::string& from, RunDirectory& directory,
                                                   const RestoreListener& listener) {
  std::error_code ignored;
  if (!std::filesystem::exists(from + "/run.json", ignored) && is_checkpoint(from)) {
    SLUICE_ASSIGN(auto weights, CheckpointWeights::open(from));
    return std::unique_ptr<WholeWeights>(std::move(weights));
  }
  SLUICE_ASSIGN(directory, RunDirectory::open(absolute_path(from)));
  SLUICE_ASSIGN(auto weights, StoredWeights::open(directory, listener));
  return std::unique_ptr<WholeWeights>(std::move(weights));
}

void print_json(const ExportArguments& options, const RunDirectory& directory, const ExportResult& result) {
  nlohmann::ordered_json j{{"directory", options.to.directory}, {"step", result.step}};
  if (directory.run()) j["steps"] = directory.run()->config.steps;
  j["dtype"] = dtype_name(result.dtype);
  j["parameters"] = result.parameters;
  j["bytes"] = result.data_bytes;
  j["files"] = result.files;
  std::printf("%s\n", j.dump().c_str());
}

void print_text(const ExportArguments& options, const RunDirectory& directory, const ExportResult& result) {
  std::string step = std::to_string(result.step);
  if (directory.run()) step += " of " + std::to_string(directory.run()->config.steps);
  std::printf("%s: step %s, %s parameters in %s, %s in %zu files\n", options.to.directory.c_str(), step.c_str(),
              format_count(static_cast<double>(result.parameters)).c_str(), dtype_name(result.dtype),
              format_bytes(result.data_bytes).c_str(), result.files.size());
}

/// Where the directory lies when links are followed: it is replaced as a whole.
std::string target_path(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  return error ? absolute_path(path) : real;
}

Status export_checkpoint(ExportArguments options) {
  options.to.directory = target_path(options.to.directory);
  if (options.dtype == "f32") options.to.dtype = Dtype::f32;
  if (options.dtype == "bf16") options.to.dtype = Dtype::bf16;
  if (options.dtype == "f16") options.to.dtype = Dtype::f16;
  if (options.to.shard_bytes_max < shard_bytes_min)
    return bad_request("--max-shard-size " + std::to_string(options.to.shard_bytes_max) + " is less than 1MiB");
  SLUICE_TRY(check_export_target(options.to.directory, options.to.force));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const RestoreListener listener = on_line(line, stop);
  RunDirectory directory;  // outlives the weights
  SLUICE_ASSIGN(const auto weights, open_weights(options.from, directory, listener));
  const auto result = export_weights(*weights, options.to, listener);
  line.finish();
  if (!result.ok()) return result.error();
  options.json ? print_json(options, directory, *result) : print_text(options, directory, *result);
  return success();
}

}  // namespace

void add_checkpoint_export(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "export", "write the model of a run or a checkpoint as a Hugging Face directory",
      "  sluice checkpoint export out ./model\n"
      "  sluice checkpoint export out ./model --dtype f32 --max-shard-size 2GiB\n"
      "  sluice checkpoint export out/checkpoints/step-120 ./model --optimizer\n"
      "FROM is a run, a checkpoint, or a directory of checkpoints, of which the newest is taken. A run may be "
      "complete,\n"
      "stopped or crashed: then the step is exported that it would go on from, and it can still go on. What is read "
      "is\n"
      "verified against its checksums. Needs less than 256 MiB of memory whatever the model's size, and the room of "
      "the\n"
      "model on the drive. config.json, generation_config.json and the run's tokenizer files, where they still are, "
      "come\n"
      "along; all of it is in DIR, or nothing is, and what killed exports to it have left beside it (DIR.tmp-*) goes.");
  auto options = std::make_shared<ExportArguments>();
  command->add_option("FROM", options->from, "directory of a run, or a checkpoint")->required();
  command->add_option("DIR", options->to.directory, "directory to write: new, or empty")->required();
  command
      ->add_option("--dtype", options->dtype,
                   "of the weights (default: that of the parameters). bf16: the parameters that training computed "
                   "with, those of an "
                   "fp32 run rounded to nearest even; f32: the fp32 masters, which a complete bf16 run has no more; "
                   "f16: rounded from the same, of a complete bf16 run from its parameters")
      ->check(one_of({"f32", "bf16", "f16"}));
  add_size(command, "--max-shard-size", &options->to.shard_bytes_max,
           "most bytes of weights in a file, beyond which there are several and an index (default: 5GB)");
  command->add_flag(
      "--optimizer", options->to.optimizer,
      "of a checkpoint also the moments, in fp32: optimizer.safetensors, with 'exp_avg.' and 'exp_avg_sq.' "
      "in front of the tensors' names");
  command->add_flag("--force", options->to.force, "replace an earlier export in DIR");
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint export", export_checkpoint(*options)); });
}

}  // namespace sluice::tools
