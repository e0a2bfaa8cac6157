#include "src/train/request/choose_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "src/train/states/hugging_face.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool has_safetensors(const std::string& directory) {
  return exists(directory + "/model.safetensors") || exists(directory + "/model.safetensors.index.json");
}

/// Names under which other programs keep weights.
bool is_of_weights(std::string_view name) {
  if (name.ends_with(".safetensors") || name.ends_with(".gguf")) return true;
  if (name.starts_with("pytorch_model")) return name.ends_with(".bin") || name.ends_with(".bin.index.json");
  return (name.starts_with("consolidated.") && name.ends_with(".pth")) || name == "tf_model.h5" ||
         name == "flax_model.msgpack";
}

/// The first by name; empty where there is none.
std::string other_weights(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename(); is_of_weights(name)) names.push_back(name);
  return names.empty() ? "" : *std::ranges::min_element(names);
}

/// How weights under that name become safetensors.
std::string how_to_convert(const std::string& directory, const std::string& name) {
  if (name.ends_with(".safetensors"))
    return "model.safetensors or model.safetensors.index.json is missing beside it; complete the directory";
  return fmt::format(
      "only safetensors are read; convert it with transformers, AutoModelForCausalLM.from_pretrained('{}')"
      ".save_pretrained(DIR)",
      directory);
}

Result<std::string> told_of(const std::string& directory, const ModelSpec& model) {
  SLUICE_TRY(check_has_safetensors(directory));
  SLUICE_ASSIGN(const HuggingFaceWeights weights, HuggingFaceWeights::open(directory, model));
  const std::size_t files = weights.file_count();
  return fmt::format("weights: from {} (safetensors, {} file{})", directory, files, files == 1 ? "" : "s");
}

/// Why there are none to begin with.
std::string why_random(const std::string& model) {
  if (is_directory(model)) return fmt::format("{} holds no weights", model);
  if (!exists(model)) return fmt::format("{} is a preset", model);
  const std::string beside = fs::path(model).parent_path().string();
  if (has_safetensors(beside.empty() ? "." : beside))
    return fmt::format("{} is a file without weights; those beside it are used with --model {}", model,
                       beside.empty() ? "." : beside);
  return fmt::format("{} is a file without weights", model);
}

}  // namespace

Status check_has_safetensors(const std::string& directory) {
  if (!is_directory(directory) || has_safetensors(directory)) return success();
  const std::string other = other_weights(directory);
  if (other.empty()) return bad_request(directory + " has neither model.safetensors nor model.safetensors.index.json");
  return bad_request(fmt::format("{} has its weights in {}: {}", directory, other, how_to_convert(directory, other)));
}

Status check_not_unfinished_run(const std::string& option, const std::string& model) {
  if (!exists(model + "/run.json") || exists(model + "/result.json")) return success();
  return bad_request(fmt::format(
      "{} {} is a run that is not complete; write its model with 'sluice checkpoint export {} DIR' and give "
      "{} DIR, or go on with it: sluice train --run {} --resume",
      option, model, model, option, model));
}

Result<WeightsChoice> choose_weights(const RunConfig& config, bool from_scratch, const ModelSpec& model) {
  if (from_scratch && !config.init.empty())
    return bad_request("--init gives the weights to start from, and --from-scratch takes none; leave one of them out");
  const bool is_stored = is_directory(config.model) && has_safetensors(config.model);
  WeightsChoice choice{config.init, ""};
  if (choice.init.empty() && !from_scratch && is_stored) choice.init = config.model;
  if (!choice.init.empty()) {
    SLUICE_TRY(check_not_unfinished_run("--init", choice.init));
    SLUICE_ASSIGN(choice.told, told_of(choice.init, model));
    return choice;
  }
  if (!from_scratch && is_directory(config.model) && !other_weights(config.model).empty()) {
    const Status why = check_has_safetensors(config.model);
    return bad_request(why.error().message + ", or begin with random weights: --from-scratch");
  }
  choice.told = fmt::format("weights: random, seed {} ({})", config.seed,
                            from_scratch ? "--from-scratch" : why_random(config.model));
  return choice;
}

}  // namespace sluice
