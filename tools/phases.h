// The phases of a run whose sequences have one length after another (--seq-schedule).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/train/request/prepare.h"

namespace sluice::tools {

/// The run at a later one of its phases, with what was decided for it.
Result<RunConfig> config_of_phase(const Prepared& run, std::size_t phase);

/// Plans of all phases behind the one that the run is at, which may be none. bad_request for the first that does not
/// fit, with budgets that would do.
Result<std::vector<std::unique_ptr<Prepared>>> prepare_later_phases(Prepared& run, const Tell& progress);

/// "steps 1,001 to 5,000: sequences of 2,048 tokens, predicted 3.71 s a step; arenas: ..."
std::string phase_text(const Prepared& run);
nlohmann::ordered_json phase_json(const Prepared& run);

}  // namespace sluice::tools
