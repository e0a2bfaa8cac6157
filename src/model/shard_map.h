// Where the elements of a model lie: which shard of a unit's flat buffer, and where in it.
//
// A unit's flat buffer is cut into equal parts, one for each rank of a shard group, rounded up to whole grains; what
// the last parts have beyond the buffer's end is padding. Other groups have the same parts again, as replicas. Where
// sublayers are cut over ranks (src/model/split.h) each of these has a flat buffer of its own part of the unit, and
// these buffers lie behind one another in what is called flat here. Whoever asks where a tensor is, or whose an element
// is, asks here.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "sluice/plan.h"
#include "src/model/model.h"

namespace sluice {

/// Elements that no shard cuts: a page of 8-bit codes, and what hashes are made of.
constexpr std::uint64_t shard_grain_numel = 4096;

/// Some axes of a topology as digits of a rank's number, and the number of what they say.
class RankDigits {
 public:
  explicit RankDigits(RankId count, RankId stride = 1) : size_(count) { digits_[used_++] = {count, stride}; }
  RankDigits(const Topology& topology, AxisSet axes) {
    for (std::size_t i = 0; i < topology.axes.size(); ++i) {
      const Axis& axis = topology.axes[i];
      if (!(axes >> i & 1) || axis.size == 1) continue;
      digits_.at(used_++) = {axis.size, axis.stride};
      size_ = static_cast<RankId>(size_ * axis.size);
    }
  }
  RankId size() const { return size_; }
  RankId position_of(RankId rank) const {
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < used_; ++i) at = at * digits_[i].size + rank / digits_[i].stride % digits_[i].size;
    return static_cast<RankId>(at);
  }
  /// Of the ranks whose other digits are 0.
  RankId rank_at(RankId position) const {
    std::uint32_t rank = 0, rest = position;
    for (std::size_t i = used_; i-- > 0; rest /= digits_[i].size) rank += rest % digits_[i].size * digits_[i].stride;
    return static_cast<RankId>(rank);
  }

 private:
  struct Digit {
    RankId size = 1, stride = 1;
  };
  std::array<Digit, 4> digits_{};
  std::size_t used_ = 0;
  RankId size_ = 1;
};

class ShardMap {
 public:
  /// `model`, which outlives it, as a rank has it. Replicas add up their shards in as many equal parts, of whole
  /// elements.
  ShardMap(const ModelSpec& model, const RankDigits& shards, const RankDigits& parts, RankId replicas = 1)
      : model_(&model),
        shard_digits_(shards),
        part_digits_(parts),
        shards_(shards.size()),
        grain_numel_(std::lcm(shard_grain_numel, std::uint64_t{replicas})) {}
  /// Of a whole model.
  ShardMap(const ModelSpec& model, RankId shards) : ShardMap(model, RankDigits(shards), RankDigits(1)) {}

  /// Of all parts.
  RankId shards() const { return static_cast<RankId>(shards_ * parts()); }
  RankId parts() const { return part_digits_.size(); }
  RankId shard_of(RankId rank) const {
    return static_cast<RankId>(part_of_rank(rank) * shards_ + shard_digits_.position_of(rank));
  }
  /// The first rank of a stage that has it.
  RankId rank_of(RankId shard) const {
    const auto in_group = static_cast<RankId>(shard % shards_);
    return static_cast<RankId>(shard_digits_.rank_at(in_group) + part_digits_.rank_at(part_of(shard)));
  }
  RankId part_of(RankId shard) const { return static_cast<RankId>(shard / shards_); }
  RankId part_of_rank(RankId rank) const { return part_digits_.position_of(rank); }
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
  RankDigits shard_digits_, part_digits_;
  RankId shards_;
  std::uint64_t grain_numel_;
};

}  // namespace sluice
