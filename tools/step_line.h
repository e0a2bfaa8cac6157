// How far a run is, as one line of whatever width there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/run/trainer.h"

namespace sluice::tools {

/// The same step in words, the longest form first. Step, loss, tokens a second and memory, in this order, are the last
/// to go; the shorter forms leave out a tier of which nothing is used, and write "1.2G" for 1.2 GiB.
std::vector<std::string> step_forms(const StepRecord& record, std::int64_t steps);

}  // namespace sluice::tools
