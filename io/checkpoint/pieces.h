// Pieces of tensors: cut, checked whether they are the tensors, and found.
#pragma once

#include <cstdint>
#include <vector>

#include "io/checkpoint/manifest.h"

namespace sluice {

/// What of a piece lies in [first, first + numel) of its buffer, as pieces of a buffer that begins there.
void clip_piece(const TensorPiece& piece, std::uint64_t first, std::uint64_t numel, std::vector<TensorPiece>& clipped);

/// Every element of every tensor is there, in all states that any part of it is in; rectangles that are there several
/// times are the same rectangle: copies. bad_request, naming the tensor.
Status check_coverage(const Manifest& manifest);

/// Of elements of a unit's flat buffer those that go to a rectangle of another.
struct StateCopy {
  std::uint32_t file = 0, unit = 0, state = 0;  ///< in the manifest, the file, and the unit
  std::uint64_t from = 0, from_stride = 0;      ///< elements of the stored buffer
  std::uint64_t to = 0, to_stride = 0;          ///< elements of the buffer that is wanted
  std::uint64_t rows = 0, columns = 0;
};

/// Of a manifest that has passed check_coverage. Copies are taken from the first file that has them.
class PieceIndex {
 public:
  /// `manifest` outlives it.
  explicit PieceIndex(const Manifest& manifest);

  bool has(StateKind kind) const;
  /// Appends what makes the wanted piece. The manifest has the tensor, and the state.
  void find(StateKind kind, const TensorPiece& wanted, std::vector<StateCopy>& copies) const;

 private:
  struct Place {
    TensorPiece piece;
    std::uint32_t file = 0, unit = 0;
  };
  const Manifest& manifest_;
  std::vector<std::vector<Place>> places_;  ///< of each tensor and kind, by row and column
  std::size_t index(std::uint32_t tensor, StateKind kind) const {
    return static_cast<std::size_t>(tensor) * state_names.size() + static_cast<std::size_t>(kind);
  }
};

}  // namespace sluice
