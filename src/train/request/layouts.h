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
  std::optional<int> stages, data, context, tensor, shard_group, micro_batch;
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
  int bounded = 0;        ///< whose bound says that they can not be among the quickest
  int not_looked_at = 0;  ///< that promise least
};

/// How long is looked for, and whether those are left out whose bound is above the last of the quickest.
struct LayoutEffort {
  bool prunes = true;
  double estimating_seconds = 40, searching_seconds = 60;
};

/// Of config.ranks ranks: every product of stages, parts of the batch, slices of sequences and parts of sublayers, each
/// with the orders of passes, the sharing of states and the sizes of micro-batches that go with it. By what they
/// compute and send at least they are put in order, and estimated (src/schedule/quick.h) until no other can be among
/// the quickest, or for as long as a person likes to wait; of those the `searched_max` quickest are measured, searched,
/// built and proven, as far as another minute goes, and one that fits at least. Bits depend on slices, parts of
/// sublayers, lots and micro-batches alone. Errors: bad_request where no arrangement can be, with the reason of the
/// first.
constexpr std::size_t searched_max = 10;
Result<Layouts> find_layouts(const RunConfig& config, const LayoutWish& wish, const Tell& progress,
                             const LayoutEffort& effort = {});

/// What a step of an arrangement takes at least: its FLOP with the pipeline's bubble, what a rank receives of parts of
/// sums, and of gradients and parameters.
double least_seconds(const Prepared& run);

/// An arrangement that can be, with which a request can be checked before anything is measured. bad_request as above.
Result<RunConfig> any_layout(const RunConfig& config, const LayoutWish& wish);

}  // namespace sluice
