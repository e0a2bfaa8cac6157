// Which elements of which tensors a shard of a unit has: how a run's layout is told to checkpoints, and what is asked
// of them.
#pragma once

#include <vector>

#include "io/checkpoint/manifest.h"
#include "src/model/shard_map.h"
#include "src/model/split.h"

namespace sluice {

/// All tensors of the model, in the order of its units.
std::vector<StoredTensor> stored_tensors(const ModelSpec& model);

/// `model` is the whole one; `split`, null where sublayers are not cut, and `map` are a run's. Tensors are numbered as
/// stored_tensors has them. Padding is in no piece.
std::vector<TensorPiece> shard_pieces(const ModelSpec& model, const SplitModel* split, const ShardMap& map, UnitId unit,
                                      RankId shard);

}  // namespace sluice
