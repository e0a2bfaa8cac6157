#include "io/checkpoint/pieces.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace sluice {
namespace {

using PlaceKey = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
PlaceKey key_of(const TensorPiece& p) { return {p.row, p.column, p.rows, p.columns}; }

/// Rectangles without copies, by row and column.
struct Rectangles {
  std::vector<TensorPiece> list;
  void add(const TensorPiece& piece) { list.push_back(piece); }
  void sort() {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
    list.erase(
        std::unique(list.begin(), list.end(), [](const auto& a, const auto& b) { return key_of(a) == key_of(b); }),
        list.end());
  }
  std::uint64_t area() const {
    std::uint64_t area = 0;
    for (const TensorPiece& p : list) area += p.rows * p.columns;
    return area;
  }
  /// Sweeps over the rows with the columns that rectangles have there.
  bool overlap() const {
    std::map<std::uint64_t, const TensorPiece*> open;  // by first column
    for (const TensorPiece& p : list) {
      std::erase_if(open, [&](const auto& entry) { return entry.second->row + entry.second->rows <= p.row; });
      const auto next = open.lower_bound(p.column);
      if (next != open.end() && next->first < p.column + p.columns) return true;
      if (next != open.begin() && std::prev(next)->first + std::prev(next)->second->columns > p.column) return true;
      open[p.column] = &p;
    }
    return false;
  }
};

/// A part of one row of a piece.
void clip_row(const TensorPiece& p, std::uint64_t row, std::uint64_t first, std::uint64_t end,
              std::vector<TensorPiece>& clipped) {
  const std::uint64_t at = p.at + row * p.stride, a = std::max(at, first), b = std::min(at + p.columns, end);
  if (a < b) clipped.push_back({p.tensor, p.row + row, p.column + (a - at), 1, b - a, a - first, b - a});
}

}  // namespace

void clip_piece(const TensorPiece& p, std::uint64_t first, std::uint64_t numel, std::vector<TensorPiece>& clipped) {
  const std::uint64_t end = first + numel;
  if (p.at >= end || p.end() <= first) return;
  if (p.rows == 1) return clip_row(p, 0, first, end, clipped);
  // Rows that have anything there, of which the outer two may be cut.
  std::uint64_t begin_row = first < p.at + p.columns ? 0 : (first - p.at - p.columns) / p.stride + 1;
  std::uint64_t end_row = std::min(p.rows, (end - p.at - 1) / p.stride + 1);
  if (begin_row >= end_row) return;
  if (p.at + begin_row * p.stride < first) clip_row(p, begin_row++, first, end, clipped);
  const bool cut = begin_row < end_row && p.at + (end_row - 1) * p.stride + p.columns > end;
  if (cut) --end_row;
  if (begin_row < end_row)
    clipped.push_back({p.tensor, p.row + begin_row, p.column, end_row - begin_row, p.columns,
                       p.at + begin_row * p.stride - first, end_row - begin_row == 1 ? p.columns : p.stride});
  if (cut) clip_row(p, end_row, first, end, clipped);
}

Status check_coverage(const Manifest& m) {
  std::vector<std::array<Rectangles, state_names.size()>> of(m.tensors.size());
  std::array<bool, state_names.size()> used{};
  for (const StoredFile& file : m.files)
    for (const StoredUnit& unit : file.units)
      for (const StoredState& state : unit.states) {
        used[static_cast<std::size_t>(state.kind)] = true;
        for (const TensorPiece& p : unit.pieces) of[p.tensor][static_cast<std::size_t>(state.kind)].add(p);
      }
  if (!used[static_cast<std::size_t>(StateKind::parameter)]) return bad_request("has no parameters");
  if (used[static_cast<std::size_t>(StateKind::exp_avg)] != used[static_cast<std::size_t>(StateKind::exp_avg_sq)])
    return bad_request("has one of the two moments, and not the other");
  for (std::size_t t = 0; t < m.tensors.size(); ++t)
    for (std::size_t kind = 0; kind < state_names.size(); ++kind) {
      if (!used[kind]) continue;
      Rectangles& rectangles = of[t][kind];
      rectangles.sort();
      const std::string what = std::string(state_names[kind]) + " of " + m.tensors[t].name;
      if (rectangles.overlap()) return bad_request("has parts of the " + what + " in several places that differ");
      if (rectangles.area() != m.tensors[t].rows() * m.tensors[t].columns())
        return bad_request("does not have all of the " + what);
    }
  return success();
}

PieceIndex::PieceIndex(const Manifest& manifest) : manifest_(manifest) {
  places_.resize(manifest.tensors.size() * state_names.size());
  for (std::uint32_t f = 0; f < manifest.files.size(); ++f)
    for (std::uint32_t u = 0; u < manifest.files[f].units.size(); ++u) {
      const StoredUnit& unit = manifest.files[f].units[u];
      for (const StoredState& state : unit.states)
        for (const TensorPiece& p : unit.pieces) places_[index(p.tensor, state.kind)].push_back({p, f, u});
    }
  const auto before = [](const Place& a, const Place& b) { return key_of(a.piece) < key_of(b.piece); };
  const auto same = [](const Place& a, const Place& b) { return key_of(a.piece) == key_of(b.piece); };
  for (std::vector<Place>& list : places_) {
    std::stable_sort(list.begin(), list.end(), before);
    list.erase(std::unique(list.begin(), list.end(), same), list.end());
  }
}

bool PieceIndex::has(StateKind kind) const {
  for (std::uint32_t t = 0; t < manifest_.tensors.size(); ++t)
    if (!places_[index(t, kind)].empty()) return true;
  return false;
}

void PieceIndex::find(StateKind kind, const TensorPiece& wanted, std::vector<StateCopy>& copies) const {
  std::uint64_t found = 0;
  for (const Place& place : places_[index(wanted.tensor, kind)]) {
    const TensorPiece& p = place.piece;
    if (p.row >= wanted.row + wanted.rows) break;
    const std::uint64_t row = std::max(p.row, wanted.row), column = std::max(p.column, wanted.column);
    const std::uint64_t row_end = std::min(p.row + p.rows, wanted.row + wanted.rows);
    const std::uint64_t column_end = std::min(p.column + p.columns, wanted.column + wanted.columns);
    if (row >= row_end || column >= column_end) continue;
    const std::vector<StoredState>& states = manifest_.files[place.file].units[place.unit].states;
    const auto state = std::find_if(states.begin(), states.end(), [&](const auto& s) { return s.kind == kind; });
    StateCopy copy{place.file,
                   place.unit,
                   static_cast<std::uint32_t>(state - states.begin()),
                   p.at + (row - p.row) * p.stride + (column - p.column),
                   p.stride,
                   wanted.at + (row - wanted.row) * wanted.stride + (column - wanted.column),
                   wanted.stride,
                   row_end - row,
                   column_end - column};
    found += copy.rows * copy.columns;
    if (copy.rows > 1 && copy.from_stride == copy.columns && copy.to_stride == copy.columns) {  // consecutive in both
      copy.columns *= copy.rows;
      copy.rows = 1;
    }
    copies.push_back(copy);
  }
  SLUICE_CHECK(found == wanted.rows * wanted.columns, "(%s: %llu of %llu elements)",
               manifest_.tensors[wanted.tensor].name.c_str(), static_cast<unsigned long long>(found),
               static_cast<unsigned long long>(wanted.rows * wanted.columns));
}

}  // namespace sluice
