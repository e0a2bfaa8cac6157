// The metrics of a run that goes on: lines up to the step that it goes on from, and no others.
#pragma once

#include <cstdint>
#include <string>

#include "io/publish.h"

namespace sluice {

struct ContinuedMetrics {
  LineWriter writer;           ///< appends
  std::int64_t last_step = 0;  ///< of the lines that are kept; 0: none is
};

/// Cut off what follows the line of `step` (lines have ascending steps), also an incomplete last line. A file that is
/// missing starts empty. Pipes and terminals are only written to. bad_request when a line is not of a metrics file.
Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step);

/// Whether continue_metrics could: without changing the file.
Status check_metrics(const std::string& path);

}  // namespace sluice
