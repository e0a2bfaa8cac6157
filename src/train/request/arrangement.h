// How the ranks of a run are arranged: what can be, and what follows where it is left open.
#pragma once

#include "src/schedule/schedule.h"
#include "src/train/request/run_config.h"

namespace sluice {

/// Of a batch: as many as ranks that share it; where ranks add up after each lot, as many as there are micro-batches
/// for.
int lots_of(const RunConfig& c);
/// Ranks of a shard group that are close: as --second-copy says, or, where gradients are exchanged in bits, those of a
/// machine.
RankId close_ranks_of(const RunConfig& c);

/// Of --mesh-order: "pp,dp,cp,tp" and its like. bad_request if it is not all four with pp first.
Result<MeshOrder> mesh_order_of(const RunConfig& c);

/// The first so many ranks have every state of the run between them; the others have replicas alone.
int ranks_with_all_states(const RunConfig& c);

/// Of stages, slices and parts, as far as the model does not matter. bad_request, as below.
Status check_mesh(const RunConfig& c);
/// What ranks share, in whose order gradients add up, and what travels in few bits: of a batch that divides among them.
Status check_sharing(const RunConfig& c);
/// Whether any number of groups of micro-batches goes with the pipeline's order.
Status check_pipeline_groups(const Workload& w, const RunConfig& c);

}  // namespace sluice
