// A step as JSON, for reports: in what `plan --json` prints, and in the timeline.json of a run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "src/train/request/prepare.h"

namespace sluice {

/// Of rank 0: what bounds its passes, and as predicted lanes, work and memory; and as measured, unless that is empty.
/// Seconds are from the start of the step's first op. Of a size that does not grow with the plan beyond two passes a
/// unit. Of a run that fits.
/// `ahead`: of StagePlans::ahead, instead of the main plan.
nlohmann::ordered_json step_json(const Prepared& run, const Timeline& measured = {}, bool ahead = false);

/// Rates of the machine that the prediction is for.
nlohmann::ordered_json machine_json(const Prepared& run);

}  // namespace sluice
