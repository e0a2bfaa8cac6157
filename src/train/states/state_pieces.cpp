#include "src/train/states/state_pieces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "io/checkpoint/pieces.h"

namespace sluice {
namespace {

/// Puts runs of a tensor's elements together to rectangles.
class Rectangles {
 public:
  Rectangles(std::uint32_t tensor, std::uint64_t columns) : tensor_(tensor), columns_(columns) {}

  /// Of elements of the whole tensor, from `at` on in the buffer.
  void add(std::uint64_t of_whole, std::uint64_t at, std::uint64_t numel) {
    while (numel > 0) {
      const std::uint64_t row = of_whole / columns_, column = of_whole % columns_;
      const std::uint64_t rows = column == 0 ? std::max<std::uint64_t>(1, numel / columns_) : 1;
      const std::uint64_t columns = std::min(numel, columns_ - column);
      put({tensor_, row, column, rows, columns, at, columns});
      of_whole += rows * columns;
      at += rows * columns;
      numel -= rows * columns;
    }
  }
  std::vector<TensorPiece> take() {
    for (auto& [key, piece] : open_) done_.push_back(piece);
    open_.clear();
    std::sort(done_.begin(), done_.end(), [](const TensorPiece& a, const TensorPiece& b) { return a.at < b.at; });
    return std::move(done_);
  }

 private:
  void put(const TensorPiece& piece) {
    const auto [place, is_new] = open_.try_emplace({piece.column, piece.columns}, piece);
    if (is_new) return;
    TensorPiece& before = place->second;
    const std::uint64_t stride = before.rows == 1 ? piece.at - before.at : before.stride;
    const bool follows = piece.row == before.row + before.rows && piece.at == before.at + before.rows * stride &&
                         (piece.rows == 1 || stride == piece.columns);
    if (follows) {
      before.stride = stride;
      before.rows += piece.rows;
      return;
    }
    done_.push_back(before);
    before = piece;
  }

  std::uint32_t tensor_;
  std::uint64_t columns_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, TensorPiece> open_;  ///< by column and columns
  std::vector<TensorPiece> done_;
};

}  // namespace

std::vector<StoredTensor> stored_tensors(const ModelSpec& model) {
  std::vector<StoredTensor> tensors;
  for (const UnitSpec& unit : model.units)
    for (const TensorSpec& t : unit.tensors) {
      SLUICE_CHECK(t.index == tensors.size(), "(%s)", t.name.c_str());
      tensors.push_back({t.name, {t.shape.begin(), t.shape.end()}});
    }
  return tensors;
}

std::vector<TensorPiece> shard_pieces(const ModelSpec& model, const SplitModel* split, const ShardMap& map, UnitId unit,
                                      RankId shard) {
  const UnitSpec& whole = model.units[static_cast<std::size_t>(unit)];
  const UnitSpec& part = split == nullptr ? whole : split->part().units[static_cast<std::size_t>(unit)];
  const std::uint64_t first = map.begin_in_part(unit, shard), numel = map.shard_numel(unit);
  std::vector<TensorPiece> pieces;
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    const TensorSpec& t = part.tensors[i];
    if (t.offset >= first + numel || t.offset + t.numel <= first) continue;
    Rectangles rectangles(whole.tensors[i].index, static_cast<std::uint64_t>(whole.tensors[i].shape.back()));
    if (split == nullptr)
      rectangles.add(0, t.offset, t.numel);
    else
      split->each_run(unit, i, map.part_of(shard), [&](const SplitModel::Run& run) {
        rectangles.add(run.of_whole, t.offset + run.of_part, run.numel);
      });
    for (const TensorPiece& piece : rectangles.take()) clip_piece(piece, first, numel, pieces);
  }
  return pieces;
}

}  // namespace sluice
