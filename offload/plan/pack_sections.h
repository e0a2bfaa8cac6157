// Lives of pieces as sections of time, for the complete search (pack_complete.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan/pack_fit.h"

namespace sluice::planning {

/// A piece among sections: alive from `first` to `last`, both included.
struct SectionSpan {
  std::uint32_t first = 0, last = 0;
  std::uint64_t life = 0;  ///< life_of() the piece: sections are a few of its moments
  std::uint64_t units = 0;
  std::uint64_t floor = 0;  ///< in units: it lies no lower
};

/// Sections are the moments at which nothing more can be added to what is alive: all others have a part of what is
/// alive at one of them, so that two pieces meet if they share a section, and no more bytes are ever alive than at one
/// of these. There are at most as many as pieces. Sizes and floors are in units, the largest that divides all of them:
/// every offset of a placement in which each piece rests on another or its floor is a whole number of units.
struct Sections {
  std::uint32_t count = 0;
  std::uint64_t unit_bytes = 1;
  std::vector<SectionSpan> spans;    ///< per piece
  std::vector<std::uint64_t> units;  ///< alive in each section
};

/// Of each piece those that it meets.
using Neighbours = std::vector<std::vector<std::uint32_t>>;
Neighbours neighbours_of(const Sections& sections);

/// Pieces of no bytes are refused (SLUICE_CHECK).
Sections sections_of(std::span<const Piece> pieces);

}  // namespace sluice::planning
