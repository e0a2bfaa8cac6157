// Where the elements of a model lie: which shard of a unit's flat buffer, and where in it.
//
// A unit's flat buffer is cut into equal parts, one for each rank of a shard group, rounded up to whole grains; what
// the last parts have beyond the buffer's end is padding. Other groups have the same parts again, as replicas. Where
// sublayers are cut over ranks (src/model/split.h) each of these has a flat buffer of its own part of the unit, and
// these buffers lie behind one another in what is called flat here. The rank that counts fastest is the one that
// sublayers are cut over. Whoever asks where a tensor is, or whose an element is, asks here.
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
  /// `model`, which outlives it, as a rank has it. Replicas add up their shards in as many equal parts, of whole
  /// elements.
  ShardMap(const ModelSpec& model, RankId shards, RankId replicas = 1, RankId parts = 1)
      : model_(&model),
        shards_(shards),
        parts_(parts),
        grain_numel_(std::lcm(shard_grain_numel, std::uint64_t{replicas})) {}

  /// Of all parts.
  RankId shards() const { return static_cast<RankId>(shards_ * parts_); }
  RankId parts() const { return parts_; }
  /// A stage's ranks count from a multiple of all of them.
  RankId shard_of(RankId rank) const {
    return static_cast<RankId>(part_of_rank(rank) * shards_ + rank / parts_ % shards_);
  }
  /// The first rank of a stage that has it.
  RankId rank_of(RankId shard) const { return static_cast<RankId>(shard % shards_ * parts_ + part_of(shard)); }
  RankId part_of(RankId shard) const { return static_cast<RankId>(shard / shards_); }
  RankId part_of_rank(RankId rank) const { return static_cast<RankId>(rank % parts_); }
  /// Of a rank's part.
  std::uint64_t unit_numel(UnitId unit) const { return model_->units[static_cast<std::size_t>(unit)].numel; }
  /// Elements of each shard, padding included.
  std::uint64_t shard_numel(UnitId unit) const {
    const std::uint64_t grain = grain_numel_ * shards_;
    return (unit_numel(unit) + grain - 1) / grain * grain_numel_;
  }
  /// Of a part.
  std::uint64_t full_numel(UnitId unit) const { return shard_numel(unit) * shards_; }
  /// First element of a shard in the flat buffer, and in that of its part.
  std::uint64_t begin(UnitId unit, RankId shard) const { return shard * shard_numel(unit); }
  std::uint64_t begin_in_part(UnitId unit, RankId shard) const { return shard % shards_ * shard_numel(unit); }
  /// Elements of a shard that are not padding.
  std::uint64_t content_numel(UnitId unit, RankId shard) const {
    const std::uint64_t first = begin_in_part(unit, shard), all = unit_numel(unit);
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
  RankId shards_, parts_;
  std::uint64_t grain_numel_;
};

}  // namespace sluice
