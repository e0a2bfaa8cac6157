// A run's configuration and schedule as JSON, for the run directory; and what of it may change when a run goes on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "src/schedule/schedule.h"
#include "src/train/run_config.h"

namespace sluice {

nlohmann::ordered_json to_json(const RunConfig& config);
/// bad_request naming the field that is missing or has another type.
Result<RunConfig> run_config_from_json(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Schedule& schedule);
Result<Schedule> schedule_from_json(const nlohmann::ordered_json& json);

/// The stored configuration with what the user gave anew (names of options, like "--metrics") laid over it.
/// bad_request for the first option that would make it another run: with both values.
Result<RunConfig> continued(const RunConfig& stored, const RunConfig& given, const std::set<std::string>& options);

}  // namespace sluice
