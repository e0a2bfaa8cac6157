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
/// missing starts empty. Pipes and terminals are only written to. A line that is not of a metrics file, as a power cut
/// may leave one, is cut off with what follows where at most `rebuilt_max` lines then are missing; else bad_request.
Result<ContinuedMetrics> continue_metrics(const std::string& path, std::int64_t step, std::int64_t rebuilt_max);

/// bad_request when the file does not begin as metrics do. Changes nothing.
Status check_metrics(const std::string& path);

}  // namespace sluice
