// Small random plans that are legal by construction once finished, for oracles to disagree with.
#pragma once

#include <cstdint>
#include <vector>

#include "sluice/plan.h"

namespace sluice {

struct RandomPlanOptions {
  int rounds = 12;         ///< about as many ops
  Topology topology = {};  ///< of the rank; collectives along every set of its axes
  bool cyclic = true;
  bool durable = true;  ///< two-slot buffers with sync and commit
};

/// Rank 0 among axes of these sizes.
Topology grid(const std::vector<RankId>& sizes);

/// Ops, lanes and buffers without offsets and waits; the same for the same seed. Ranks of one topology differ in their
/// own parts of what is gathered, and in nothing else.
StepPlan random_plan(std::uint64_t seed, const RandomPlanOptions& options);

/// A transformer-like step of `layers` units and `micro_batches` on one device arena: parameters fetched ahead, kept
/// activations, recomputation, workspaces, gradients drained.
StepPlan transformer_plan(int layers, int micro_batches, bool keep_activations);

}  // namespace sluice
