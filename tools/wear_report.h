// How plan and train tell what a run writes to its drives.
#pragma once

#include <nlohmann/json.hpp>

#include "src/train/request/prepare.h"
#include "src/train/request/wear.h"

namespace sluice::tools {

constexpr auto predicted_rate = "at the predicted step time";
/// Of a run that fits and has drives, with its checkpoints where they are on them.
Wear predicted_wear(const Prepared& run);

/// {bytes_per_step, bytes_per_day, tbw_bytes, days}; null is what is not known.
nlohmann::ordered_json wear_json(const Wear& wear);

}  // namespace sluice::tools
