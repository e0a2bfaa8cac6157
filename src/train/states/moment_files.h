// The moments of AdamW as safetensors: optimizer.safetensors, or shards with an index, beside a model's weights. Named
// "exp_avg." and "exp_avg_sq.", and then as the tensor that they are of.
#pragma once

#include <string>

#include "src/model/model.h"

namespace sluice {

constexpr const char* moment_files = "optimizer";  ///< that their names begin with

/// A model whose tensors are the moments of another's: its units' exp_avg in their order, then their exp_avg_sq. Only
/// to read and write files by.
ModelSpec moments_as_model(const ModelSpec& model);

/// What SafeTensors::open takes: the index or the file in the directory; empty where there is neither.
std::string moments_beside(const std::string& directory);

}  // namespace sluice
