// The order in which a model's weights are read and written outside steps: unit after unit, shard after shard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "src/model/model.h"

namespace sluice {

/// A part of a rank's shard of a unit's flat buffer.
struct WeightPiece {
  UnitId unit = 0;
  RankId rank = 0;
  std::uint64_t at = 0;             ///< first element in the shard
  std::uint64_t first = 0;          ///< the same in the flat buffer
  std::uint64_t numel = 0;          ///< in the shard
  std::uint64_t content_numel = 0;  ///< of those in the flat buffer; what is left is the last shards' padding
};

class WeightPieces {
 public:
  using ShardNumel = std::function<std::uint64_t(UnitId unit)>;
  /// `model` outlives it.
  WeightPieces(const ModelSpec& model, RankId ranks, ShardNumel shard_numel, std::uint64_t piece_numel)
      : model_(&model), ranks_(ranks), shard_numel_(std::move(shard_numel)), piece_numel_(piece_numel) {}

  std::uint64_t piece_numel() const { return piece_numel_; }
  /// Empty after the last.
  std::optional<WeightPiece> next() {
    if (unit_ == static_cast<UnitId>(model_->units.size())) return std::nullopt;
    const std::uint64_t shard = shard_numel_(unit_), whole = model_->units[static_cast<std::size_t>(unit_)].numel;
    WeightPiece piece{unit_, rank_, at_, rank_ * shard + at_, std::min(piece_numel_, shard - at_), 0};
    piece.content_numel = piece.first < whole ? std::min(piece.numel, whole - piece.first) : 0;
    if ((at_ += piece.numel) < shard) return piece;
    at_ = 0;
    if (++rank_ < ranks_) return piece;
    rank_ = 0;
    ++unit_;
    return piece;
  }

 private:
  const ModelSpec* model_;
  RankId ranks_;
  ShardNumel shard_numel_;
  std::uint64_t piece_numel_;
  UnitId unit_ = 0;
  RankId rank_ = 0;
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
