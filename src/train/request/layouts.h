// How the ranks of a run may be arranged, and which arrangement is predicted to be quickest.
//
// FlexFlow (arXiv 1807.05358) and Alpa (arXiv 2201.12023) search such spaces with a model of cost. Here every candidate
// that is offered has been built, proven and simulated: as the run would be, or, where that takes long, on a sample of
// its layers and micro-batches.
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
  std::optional<ContextAttention> context_attention;
};

struct Layout {
  RunConfig config;
  bool keeps_bits = false;   ///< it trains to the bits of the configuration that was given
  double seconds = 0;        ///< of a step: predicted, or estimated on a sample
  bool is_searched = false;  ///< searched, built and proven with all layers and micro-batches
  bool is_proven = false;    ///< on a sample at least: one of the quickest
  // Of those that are proven:
  TierBytes needs;  ///< of a rank; of samples what is alive at once, before it is packed
  Resource limit = Resource::compute;
  Schedule schedule;              ///< that it was estimated with
  std::unique_ptr<Prepared> run;  ///< of the quickest
};

struct Layouts {
  /// Those that were searched, the quickest first; then those that were estimated, of which the first ones are proven
  /// on samples.
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
  double estimating_seconds = 40, searching_seconds = 15;
};

/// Of config.ranks ranks: every product of stages, parts of the batch, slices of sequences and parts of sublayers, each
/// with the orders of passes, the sharing of states and the sizes of micro-batches that go with it. By what they
/// compute and send at least they are put in order, and estimated (src/schedule/quick.h) until no other can be among
/// the quickest, or for as long as a person likes to wait; of those the `searched_max` quickest are proven on samples,
/// and measured, searched, built and proven as a whole as far as another half a minute goes, and one that fits at
/// least. Bits depend on slices, parts of sublayers, lots and micro-batches alone. Errors: bad_request where no
/// arrangement can be, with the reason of the first.
constexpr std::size_t searched_max = 10;
Result<Layouts> find_layouts(const RunConfig& config, const LayoutWish& wish, const Tell& progress,
                             const LayoutEffort& effort = {});

/// What a step of an arrangement takes at least: its FLOP with the pipeline's bubble, what a rank receives of parts of
/// sums, and of gradients and parameters.
double least_seconds(const Prepared& run);

/// An arrangement that can be, with which a request can be checked before anything is measured. bad_request as above.
Result<RunConfig> any_layout(const RunConfig& config, const LayoutWish& wish);

}  // namespace sluice
