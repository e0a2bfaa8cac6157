// What a run leaves behind, and what it says about itself.
#pragma once

#include <cstdint>
#include <string>

#include "src/train/states/engine.h"

namespace sluice {

/// model.safetensors (Hugging Face names, the run's dtype) in `directory`, which is made if missing, with the
/// companions (src/train/run/companions.h) that `companions` holds, which may be empty. The state must be flushed and
/// nothing may run. Files appear whole or not at all, config.json last.
Status export_model(Engine& engine, const Prepared& run, const std::string& directory, const std::string& companions);

/// Hugging Face config.json of a model: read back it is the same model.
std::string hf_config_json(const ModelConfig& config, Dtype dtype);

/// Of this process, from /proc/self/statm.
std::uint64_t resident_set_bytes();

}  // namespace sluice
