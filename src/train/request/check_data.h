// What can be told of --data without reading all of it.
#pragma once

#include <cstdint>

#include "src/model/model.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// Nothing is written. bad_request as open_data and Batches::create refuse, where that is soon known: of a token file
/// from its header, of a text from its first megabyte. `windows_min`: of so many sequences the data must have room.
Status check_data_begins(const RunConfig& config, const ModelConfig& model, std::uint64_t windows_min);

}  // namespace sluice
