// A run's configuration and schedule as JSON, for the run directory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "src/schedule/schedule.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// What another value means for a run that goes on.
enum class Change : std::uint8_t {
  never,     ///< its states, where they lie, or which tokens its steps take follow from it
  free,      ///< no bit of its steps does; files and directories may have been moved
  recorded,  ///< its steps from there on do: the run remembers from which on
  /// No bit of its steps does (where activations are parked as they are), but its plan and where its states lie: they
  /// are laid out anew.
  planned,
  recast,     ///< its plan does, and bits of its steps from there on
  scheduled,  ///< the same, and the run decides it itself: recorded, and nobody gives another
};
/// What is kept of a configuration, in the order in which it is written.
struct ConfigField {
  const char* option;  ///< "--lr"; empty: not the user's
  const char* key;
  Change change;
};
const std::vector<ConfigField>& config_fields();

nlohmann::ordered_json to_json(const RunConfig& config);
/// bad_request naming the field that is missing or has another type.
Result<RunConfig> run_config_from_json(const nlohmann::ordered_json& json);

nlohmann::ordered_json to_json(const Schedule& schedule);
Result<Schedule> schedule_from_json(const nlohmann::ordered_json& json);

}  // namespace sluice
