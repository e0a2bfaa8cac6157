// The metrics of a run that goes on: lines up to the step that it goes on from, and no others.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/publish.h"

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

/// bad_request when lines are in the file and none is of a step: it is something else. Changes nothing.
Status check_metrics(const std::string& path);

}  // namespace sluice
