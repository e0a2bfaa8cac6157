// What a run keeps of its steps for `sluice report`: timeline.json in its directory, with the step that is predicted
// from the beginning on, and the last one that was measured when it ends or is stopped.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "src/train/request/prepare.h"
#include "src/train/run/run_directory.h"

namespace sluice {

constexpr int kept_timeline_version = 1;

/// A step of this process, whose timeline was recorded.
struct MeasuredStep {
  std::int64_t step = 0;
  bool is_first = false;  ///< of the process, or behind an evaluation: nothing of it was done in the step before
  bool ahead = false;     ///< of StagePlans::ahead
  Timeline timeline;      ///< empty: none was recorded
};

/// Published whole. `measured.timeline` may be empty.
Status keep_timeline(const RunDirectory& directory, const Prepared& run, const MeasuredStep& measured);

/// What the directory has of its own run; none where there is no file, or another run's. bad_request where it is
/// damaged or of another version.
Result<std::optional<nlohmann::ordered_json>> kept_timeline(const RunDirectory& directory);

}  // namespace sluice
