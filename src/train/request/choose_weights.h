// Which weights a run begins with: those that lie in its model's directory, those of --init, or random ones.
#pragma once

#include <string>

#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

struct WeightsChoice {
  std::string init;  ///< for RunConfig::init: the directory; empty: random
  std::string told;  ///< "weights: from DIR (safetensors, 2 files)", or why they are random
};

/// `from_scratch`: random ones are asked for. Only headers are read. bad_request when --init and --from-scratch are
/// both given, when the directory does not hold every tensor of the model (built of load_config(config.model)), or when
/// its weights are of a format that is not read: then random ones would be a surprise.
Result<WeightsChoice> choose_weights(const RunConfig& config, bool from_scratch, const ModelSpec& model);

/// bad_request when `model`, as --model or --init name it, is the directory of a run that is not complete: there is no
/// model in it yet. The line says how to get it.
Status check_not_unfinished_run(const std::string& option, const std::string& model);

/// bad_request for a directory without safetensors, which says what it has instead, if that is weights, and how to
/// convert them; success where there are some.
Status check_has_safetensors(const std::string& directory);

}  // namespace sluice
