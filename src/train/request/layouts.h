// How the ranks of a run may be arranged, and which arrangement is predicted to be quickest.
//
// FlexFlow (arXiv 1807.05358) and Alpa (arXiv 2201.12023) search such spaces with a model of cost. Here every candidate
// that is offered has been searched, built, proven and simulated as the run would be.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/train/request/prepare.h"

namespace sluice {

/// What of the arrangement is given; the rest is looked for.
struct LayoutWish {
  std::optional<int> stages, data, context, tensor, shard_group;
  std::optional<PipelineChoice> pipeline;
};

struct Layout {
  RunConfig config;
  bool keeps_bits = false;  ///< it trains to the bits of the configuration that was given
  double seconds = 0;       ///< of a step: predicted, or estimated by FLOP alone
  // Of one that was searched, built and proven:
  bool is_searched = false;
  TierBytes needs;  ///< of a rank
  Resource limit = Resource::compute;
  std::unique_ptr<Prepared> run;  ///< of the quickest
};

struct Layouts {
  /// Those that were searched, the quickest first, and then those that were only estimated.
  std::vector<Layout> found;
  /// Arrangements that can not be, by reason: how many there are.
  struct Refused {
    Error error;  ///< of the first of them
    int count = 0;
  };
  std::vector<Refused> refused;
  int without_room = 0;   ///< that do not fit the budgets
  int not_looked_at = 0;  ///< that promise least
};

/// Of config.ranks ranks: every product of stages, parts of the batch, slices of sequences and parts of sublayers, each
/// with the orders of passes and the sharing of states that go with it. They are estimated by their FLOP and bytes, the
/// most promising first, for as long as a person likes to wait; of those the `searched_max` quickest are measured,
/// searched, built and proven, as far as another minute goes, and one that fits at least. Bits depend on slices, parts
/// of sublayers and lots alone. Errors: bad_request where no arrangement can be, with the reason of the first.
constexpr std::size_t searched_max = 10;
Result<Layouts> find_layouts(const RunConfig& config, const LayoutWish& wish, const Tell& progress);

/// An arrangement that can be, with which a request can be checked before anything is measured. bad_request as above.
Result<RunConfig> any_layout(const RunConfig& config, const LayoutWish& wish);

}  // namespace sluice
