#include "src/train/states/moment_files.h"

#include <filesystem>

namespace sluice {

ModelSpec moments_as_model(const ModelSpec& model) {
  ModelSpec moments;
  moments.config = model.config;
  moments.config.tied = false;  // there is no head beside them
  for (const StateKind kind : {StateKind::exp_avg, StateKind::exp_avg_sq})
    for (UnitSpec unit : model.units) {
      for (TensorSpec& tensor : unit.tensors) {
        const std::string prefix = std::string(state_names[static_cast<std::size_t>(kind)]) + ".";
        tensor.name.insert(0, prefix);
        tensor.stored.name.insert(0, prefix);
      }
      moments.units.push_back(std::move(unit));
    }
  moments.parameters = 2 * model.parameters;
  return moments;
}

std::string moments_beside(const std::string& directory) {
  for (const char* end : {".safetensors.index.json", ".safetensors"}) {
    const std::string path = directory + "/" + moment_files + end;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return {};
}

}  // namespace sluice
