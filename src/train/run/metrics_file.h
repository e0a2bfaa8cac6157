// The metrics of a run that goes on: lines up to the step that it goes on from, and no others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/files/publish.h"
#include "src/train/run/run_directory.h"

namespace sluice {

struct ContinuedMetrics {
  LineWriter writer;               ///< appends
  std::int64_t last_step = 0;      ///< of the lines that are kept; 0: none is
  std::vector<std::string> notes;  ///< what was dropped, for people
};

/// The line of a step as it would have been written, where that is still known.
using RebuiltLine = std::function<std::optional<std::string>(std::int64_t step)>;

/// Cut off what follows the line of `step`, also an incomplete last line. A file that is missing starts empty. Pipes
/// and terminals are only written to. Lines that are not of a step, as a power cut or a drive may leave them, and those
/// that are out of order, are dropped and noted; where lines are missing before one that is kept they are `rebuilt`.
Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step, const RebuiltLine& rebuilt);

/// The run that goes on with a file of metrics.
struct MetricsOwner {
  std::string run;       ///< run_name: what its lines have as "run"
  bool unnamed = false;  ///< lines without one are its own as well: those of early versions, in the file that it names
};

/// bad_request, with what to do, when the file holds anything but that run's metrics; for a new run (no owner) when it
/// holds anything. What is missing or empty will do, and so will pipes and terminals. Changes nothing.
Status check_metrics(const std::string& path, const std::optional<MetricsOwner>& owner);

/// Where the metrics of a run go; empty: nowhere.
std::string metrics_path(const RunConfig& config);
/// That, for a new run or the one in `directory`, which may be null.
Status check_metrics(const RunConfig& config, const RunDirectory* directory);

}  // namespace sluice
