// Placing pieces below a given height by a search that is complete: it finds a placement, or proves that there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/plan/pack_sections.h"

namespace sluice::planning {

/// What ends a search before it is done.
struct SearchLimit {
  /// Steps, a deterministic measure: where they alone decide, the same pieces end alike on every machine. A hundred
  /// million take from half a second to a second.
  std::uint64_t work = 0;
  /// Asked now and then, where it is given; true ends the search.
  std::function<bool()> is_over;
};

struct SearchEnd {
  enum class Kind : std::uint8_t { found, impossible, limit } kind = Kind::limit;
  std::vector<std::uint64_t> offsets;  ///< found: of each piece, in bytes
  std::uint64_t work = 0;              ///< done
};

/// Pieces that a search takes: memory goes with the square.
constexpr std::size_t most_searched_pieces = 4096;

/// The method is that of MiniMalloc (Moffitt, ASPLOS 2023: canonical placements, sections, dominance, decomposition) on
/// another tree. A piece lies *ready* where it can not be lower and none that it meets could still lie wholly below it;
/// the search puts a ready piece there, or else says that it lies higher, until what it meets lifts it. Of all
/// placements below the height the one with the least sum of offsets has a ready piece where it belongs at every step,
/// so that none is lost, and since ready pieces that do not meet may be taken in any turn, no turn is tried twice and
/// the search may stay where it fails. A branch ends where in one section pieces that can not begin below some offset
/// have more bytes than are left above it. What falls apart in time is placed part by part, and parts that once failed
/// are remembered. Of identical pieces the first is the lowest. Restarts take turns with several orders and ways to
/// choose the next piece.
SearchEnd search_below(const Sections& sections, std::uint64_t height_bytes, const SearchLimit& limit);

/// The same for pieces, of which there may be any number: of more than most_searched_pieces only that they can not fit
/// is known, or nothing (limit).
SearchEnd search_pieces(std::span<const Piece> pieces, std::uint64_t height_bytes, const SearchLimit& limit);

}  // namespace sluice::planning
