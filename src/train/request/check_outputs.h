// Where metrics and a trace go.
#pragma once

#include "src/train/request/run_config.h"

namespace sluice {

/// Before anything is done for them: bad_request for places that can not be written to, and for files that the run
/// reads.
Status check_outputs(const RunConfig& config);

}  // namespace sluice
