// In which turn searches try pieces that nothing else tells apart (pack_complete.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "offload/plan/pack_sections.h"

namespace sluice::planning {

/// What orders are made of: length of life, area, and the fullest section of a life.
enum class Measure : std::uint8_t { length, area, fullest };
using Order = std::array<Measure, 3>;

constexpr std::array<Order, 3> orders{{{Measure::length, Measure::area, Measure::fullest},
                                       {Measure::fullest, Measure::area, Measure::length},
                                       {Measure::fullest, Measure::length, Measure::area}}};

/// The piece with the larger key goes first. `units`: in each section, alive or left to place.
inline std::array<std::uint64_t, 3> key_of(const SectionSpan& piece, const Order& order,
                                           std::span<const std::uint64_t> units) {
  std::array<std::uint64_t, 3> key{};
  for (std::size_t k = 0; k < order.size(); ++k)
    key[k] = order[k] == Measure::length ? piece.life
             : order[k] == Measure::area
                 ? piece.life * piece.units
                 : *std::max_element(units.begin() + piece.first, units.begin() + piece.last + 1);
  return key;
}

}  // namespace sluice::planning
