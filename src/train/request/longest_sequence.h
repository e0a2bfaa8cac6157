// The longest sequences that a run can be trained on.
#pragma once

#include <cstdint>

#include "src/train/request/prepare.h"

namespace sluice {

struct LongestSequence {
  RunConfig config;          ///< the run with such sequences, in the budgets that were looked in
  std::int64_t refused = 0;  ///< the next length, for which there is none; 0: that is as far as was looked
  /// That the model has. A model with rotary positions is planned beyond them; another one's sequences end there.
  std::int64_t positions = 0;
};

/// The shortest of the lengths that the ranks of a run share evenly: all are multiples of it.
std::int64_t shortest_sequence(const RunConfig& config);

/// Of a new run as `config` describes it, whose open budgets are what there is room for now, and whose `sequence` and
/// `beyond_positions` are not looked at, among lengths that its ranks share evenly. bad_request where the shortest of
/// them has no plan, and for a workload so large that the smallest budgets are only estimated. Takes a second or two
/// for each of about 25 lengths of a large model.
Result<LongestSequence> longest_sequence(const RunConfig& config, const Tell& progress);

}  // namespace sluice
