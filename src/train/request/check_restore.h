// Whether a run can begin from a checkpoint.
#pragma once

#include <string>

#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// Of config.restore, of which only the manifest is read: "states: of step 120, from PATH". bad_request when it is
/// none, or of another model, when its moments are missing and not left out, and when other options say where weights
/// come from.
Result<std::string> check_restore(const RunConfig& config, bool from_scratch, const ModelSpec& model);

}  // namespace sluice
