// The order in which a model's weights are read and written outside steps: unit after unit, shard after shard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sluice/dtype.h"
#include "src/model/model.h"
#include "src/model/shard_map.h"

namespace sluice {

/// Elements of a piece: in fp32, or in bf16 where that is what they are and what is wanted.
class WeightValues {
 public:
  WeightValues() = default;
  WeightValues(std::span<const float> values) : f32_(values) {}  // NOLINT(google-explicit-constructor): is a view
  WeightValues(std::span<const bf16> values) : bf16_(values) {}  // NOLINT(google-explicit-constructor)
  Dtype dtype() const { return bf16_.empty() ? Dtype::f32 : Dtype::bf16; }
  std::size_t size() const { return f32_.size() + bf16_.size(); }
  std::span<const float> as_f32() const { return f32_; }
  std::span<const bf16> as_bf16() const { return bf16_; }
  /// The first `numel` of them.
  WeightValues first(std::size_t numel) const {
    return bf16_.empty() ? WeightValues(f32_.first(numel)) : WeightValues(bf16_.first(numel));
  }
  std::span<const std::byte> bytes() const { return bf16_.empty() ? std::as_bytes(f32_) : std::as_bytes(bf16_); }

 private:
  std::span<const float> f32_;
  std::span<const bf16> bf16_;
};

/// A part of a rank's shard of a unit's flat buffer.
struct WeightPiece {
  UnitId unit = 0;
  RankId rank = 0;
  std::uint64_t at = 0;             ///< first element in the shard
  std::uint64_t first = 0;          ///< the same in the flat buffer
  RankId part = 0;                  ///< that the rank has, where sublayers are cut over ranks
  std::uint64_t first_of_part = 0;  ///< the first element in the flat buffer of that
  std::uint64_t numel = 0;          ///< in the shard
  std::uint64_t content_numel = 0;  ///< of those in the flat buffer; what is left is the last shards' padding
};

class WeightPieces {
 public:
  /// Which ranks have a unit.
  using HasUnit = std::function<RankRange(UnitId)>;
  /// Those of these ranks, of the units that they have, and with `once` of the first that has a shard alone; `model`
  /// outlives it.
  WeightPieces(const ModelSpec& model, ShardMap map, RankRange ranks, std::uint64_t piece_numel, HasUnit ranks_of = {},
               bool once = false)
      : model_(&model),
        map_(map),
        here_(ranks),
        piece_numel_(piece_numel),
        ranks_of_(std::move(ranks_of)),
        once_(once) {
    begin_unit();
  }

  std::uint64_t piece_numel() const { return piece_numel_; }
  /// Empty after the last.
  std::optional<WeightPiece> next() {
    if (unit_ == static_cast<UnitId>(model_->units.size())) return std::nullopt;
    const RankId rank = ranks_[at_rank_], own = map_.shard_of(rank);
    const std::uint64_t shard = map_.shard_numel(unit_), content = map_.content_numel(unit_, own);
    WeightPiece piece{unit_,
                      rank,
                      at_,
                      map_.begin(unit_, own) + at_,
                      map_.part_of(own),
                      map_.begin_in_part(unit_, own) + at_,
                      std::min(piece_numel_, shard - at_),
                      0};
    piece.content_numel = at_ < content ? std::min(piece.numel, content - at_) : 0;
    if ((at_ += piece.numel) < shard) return piece;
    at_ = 0;
    if (++at_rank_ < ranks_.size()) return piece;
    ++unit_;
    begin_unit();
    return piece;
  }

 private:
  /// At the first unit from this one on that any rank of here has. Ranks in the order of the flat buffer, and replicas
  /// behind each other.
  void begin_unit() {
    for (; unit_ < static_cast<UnitId>(model_->units.size()); ++unit_) {
      const RankRange all = ranks_of_ ? ranks_of_(unit_) : here_;
      std::vector<std::vector<RankId>> having(map_.shards());
      for (RankId r = all.first; r < all.end(); ++r) having[map_.shard_of(r)].push_back(r);
      ranks_.clear();
      at_rank_ = 0;
      const RankId of_part = static_cast<RankId>(map_.shards() / map_.parts());
      for (RankId part = 0; part < map_.parts(); ++part)
        for (std::size_t replica = 0; replica < (once_ ? 1 : having.front().size()); ++replica)
          for (RankId s = 0; s < of_part; ++s)
            if (const auto& ranks = having[part * of_part + s];
                replica < ranks.size() && here_.contains(ranks[replica]))
              ranks_.push_back(ranks[replica]);
      if (!ranks_.empty()) return;
    }
  }

  const ModelSpec* model_;
  ShardMap map_;
  RankRange here_;
  std::uint64_t piece_numel_;
  HasUnit ranks_of_;
  bool once_;
  std::vector<RankId> ranks_;  ///< of here, that have the unit
  UnitId unit_ = 0;
  std::size_t at_rank_ = 0;
  std::uint64_t at_ = 0;
};

/// One state of a piece.
struct StatePiece {
  WeightPiece weights;
  StateKind kind = StateKind::parameter;
};

/// Several states of each piece, one after the other.
class StatePieces {
 public:
  /// `kinds`, not empty, outlive it.
  StatePieces(WeightPieces pieces, std::span<const StateKind> kinds) : pieces_(std::move(pieces)), kinds_(kinds) {}

  /// Empty after the last.
  std::optional<StatePiece> next() {
    if (kind_ == 0) weights_ = pieces_.next();
    if (!weights_) return std::nullopt;
    const StatePiece piece{*weights_, kinds_[kind_]};
    kind_ = (kind_ + 1) % kinds_.size();
    return piece;
  }

 private:
  WeightPieces pieces_;
  std::span<const StateKind> kinds_;
  std::optional<WeightPiece> weights_;
  std::size_t kind_ = 0;
};

}  // namespace sluice
