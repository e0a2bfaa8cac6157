// sluice checkpoint import: a Hugging Face directory as a checkpoint.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "sluice/size.h"
#include "src/train/run/saved_states.h"
#include "src/train/states/import_checkpoint.h"
#include "tools/checkpoint_commands.h"
#include "tools/run_options.h"
#include "tools/values.h"

namespace sluice::tools {
namespace {

struct ImportArguments {
  ImportRequest request;
  std::string dtype;
  bool json = false;
};

Status import(ImportArguments options) {
  if (!options.dtype.empty()) options.request.dtype = options.dtype == "bf16" ? Dtype::bf16 : Dtype::f32;
  SLUICE_TRY(check_same_run("{}", options.request.parent));
  const std::atomic<bool>& stop = stop_on_signals();
  ProgressLine line(10, !options.json);
  const auto result =
      import_checkpoint(options.request, on_line(line, stop).watch("writing " + options.request.parent));
  line.finish();
  if (!result.ok()) return result.error();
  if (options.json) {
    const nlohmann::ordered_json j{{"checkpoint", result->path},         {"step", result->step},
                                   {"dtype", dtype_name(result->dtype)}, {"parameters", result->parameters},
                                   {"bytes", result->state_bytes},       {"moments", result->has_moments}};
    std::printf("%s\n", j.dump().c_str());
    return success();
  }
  std::printf("%s: step %llu, %s parameters in %s%s, %s\n", result->path.c_str(),
              static_cast<unsigned long long>(result->step),
              format_count(static_cast<double>(result->parameters)).c_str(), dtype_name(result->dtype),
              result->has_moments ? " with moments" : "", format_bytes(result->state_bytes).c_str());
  return success();
}

}  // namespace

void add_checkpoint_import(Command& checkpoint, Outcome& outcome) {
  Command* command = add_command(
      checkpoint, "import", "write a Hugging Face directory as a checkpoint",
      "  sluice checkpoint import ./Llama-3.2-1B ./checkpoints\n"
      "  sluice checkpoint import ./model ./checkpoints --dtype bf16\n"
      "Writes TO_DIR/step-0, whole or not at all, for one rank ('sluice checkpoint reshape' makes other layouts), "
      "with\n"
      "less than 128 MiB of memory whatever the model's size. bf16 parameters have remainders, so that nothing of f32\n"
      "weights is lost. Moments come along where 'sluice checkpoint export --optimizer' has left them in HF_DIR, and "
      "then\n"
      "the step is the export's; else there are none.");
  auto options = std::make_shared<ImportArguments>();
  command->add_option("HF_DIR", options->request.directory, "directory with config.json and safetensors")->required();
  command->add_option("TO_DIR", options->request.parent, "directory of checkpoints to write to; made if missing")
      ->required();
  command->add_option("--dtype", options->dtype, "of the parameters (default: bf16 where all weights are, else f32)")
      ->check(one_of({"f32", "bf16"}));
  command->add_flag("--json", options->json, "print JSON to standard output and nothing else");
  command->callback([options, &outcome] { outcome.finish("checkpoint import", import(*options)); });
}

}  // namespace sluice::tools
