// What limits a run's steps, and what to enlarge first.
#pragma once

#include <optional>
#include <string>

#include "src/train/request/prepare.h"

namespace sluice {

struct Advice {
  Resource limit = Resource::compute;
  double share = 0;  ///< of the step that this resource works
  /// The budget that gains most when it is doubled; none where that gains less than 2%.
  struct Larger {
    Tier tier;
    std::uint64_t bytes;  ///< as the option takes it
    double gain;          ///< steps are so many times as fast
  };
  std::optional<Larger> larger;
  /// Where the run is durable since nobody has said otherwise: steps that are not would be so many times as fast. None
  /// where that is less than 1.1.
  std::optional<double> not_durable_gain;
  double faster_limit_gain = 1;  ///< of a machine with twice as much of what limits, and the same budgets
};

/// Predicted, as far as estimates go: schedules of the run's kind are made for each larger budget. Takes a second or
/// so.
Advice advise(const Prepared& run);

/// One sentence.
std::string to_text(const Advice& advice);

}  // namespace sluice
