// Where the elements of a model lie: which shard of a unit's flat buffer, and where in it.
//
// A unit's flat buffer is cut into equal parts, one for each rank of a shard group, rounded up to whole grains; what the
// last parts have beyond the buffer's end is padding. Other groups have the same parts again, as replicas: rank r has
// part r modulo the parts. Whoever asks where a tensor is, or whose an element is, asks here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "sluice/plan.h"
#include "src/model/model.h"

namespace sluice {

/// Elements that no shard cuts: a page of 8-bit codes, and what hashes are made of.
constexpr std::uint64_t shard_grain_numel = 4096;

class ShardMap {
 public:
  /// `model` outlives it. Replicas add up their shards in as many equal parts, of whole elements.
  ShardMap(const ModelSpec& model, RankId shards, RankId replicas = 1)
      : model_(&model), shards_(shards), grain_numel_(std::lcm(shard_grain_numel, std::uint64_t{replicas})) {}

  RankId shards() const { return shards_; }
  RankId shard_of(RankId rank) const { return static_cast<RankId>(rank % shards_); }
  std::uint64_t unit_numel(UnitId unit) const { return model_->units[static_cast<std::size_t>(unit)].numel; }
  /// Elements of each shard, padding included.
  std::uint64_t shard_numel(UnitId unit) const {
    const std::uint64_t grain = grain_numel_ * shards_;
    return (unit_numel(unit) + grain - 1) / grain * grain_numel_;
  }
  std::uint64_t full_numel(UnitId unit) const { return shard_numel(unit) * shards_; }
  /// First element of a shard in the flat buffer.
  std::uint64_t begin(UnitId unit, RankId shard) const { return shard * shard_numel(unit); }
  /// Elements of a shard that are not padding.
  std::uint64_t content_numel(UnitId unit, RankId shard) const {
    const std::uint64_t first = begin(unit, shard), all = unit_numel(unit);
    return first < all ? std::min(shard_numel(unit), all - first) : 0;
  }

  struct Place {
    RankId shard = 0;
    std::uint64_t at = 0;  ///< element of the shard
    bool operator==(const Place&) const = default;
  };
  /// Of an element of the flat buffer.
  Place locate(UnitId unit, std::uint64_t element) const {
    const std::uint64_t shard = shard_numel(unit);
    return {static_cast<RankId>(element / shard), element % shard};
  }

 private:
  const ModelSpec* model_;
  RankId shards_;
  std::uint64_t grain_numel_;
};

}  // namespace sluice
