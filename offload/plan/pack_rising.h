// Placing pieces by rising offset: the second tree of the complete search (pack_complete.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "offload/plan/pack_complete.h"
#include "offload/plan/pack_orders.h"
#include "offload/plan/pack_sections.h"

namespace sluice::planning {

/// Pieces that it takes: calls lie as deep inside one another.
constexpr std::size_t most_rising_pieces = 1024;

/// MiniMalloc's tree (Moffitt, ASPLOS 2023): pieces are placed in the order of their offsets, each as low as it can be;
/// what could still lie wholly below a piece has to be there first. A branch ends where in one section what is left has
/// no room above the offset that was reached, or above the lowest that anything left can have there. What falls apart
/// in time is placed part by part.
class RisingSearch {
 public:
  /// `capacity` in the units of `sections`; `neighbours`: of each piece those that it meets. Both must outlive this.
  RisingSearch(const Sections& sections, const Neighbours& neighbours, std::uint64_t capacity);

  /// One pass, which ends where the limit does: its work is that of this pass.
  SearchEnd pass(const Order& order, const SearchLimit& limit);

 private:
  /// A piece that is left, and how low it can be.
  struct Left {
    std::uint64_t low;
    std::uint32_t rank, piece;
    bool operator<(const Left& other) const { return low != other.low ? low < other.low : rank < other.rank; }
  };
  /// Sections from `first` to `last`, and what is left in them.
  struct Part {
    std::uint32_t first, last;
    std::vector<std::uint32_t> pieces;
  };

  bool place_part(const Part& part);
  bool place_left(const Part& part, const std::vector<Left>& left, const Left& after);
  bool place_behind(const Part& part, const std::vector<Left>& left, const Left& put);
  bool holds(const Part& part, const std::vector<Left>& left, std::uint64_t reached);
  bool put(std::uint32_t piece);
  void take_back(std::uint32_t piece, std::size_t past);
  std::vector<Part> parts_of(const Part& part, const std::vector<Left>& left) const;
  std::uint32_t uncovered_from(std::uint32_t section);

  const Sections& sections_;
  std::uint64_t capacity_;
  const Neighbours& neighbours_;
  std::vector<std::uint64_t> low_;      ///< highest end of what is placed and meets the piece
  std::vector<std::uint64_t> left_;     ///< by section: of what is not placed
  std::vector<std::uint64_t> offsets_;  ///< of what is placed for good
  std::vector<std::uint8_t> placed_;
  std::vector<std::uint32_t> crossing_;  ///< by section: what is not placed and lives on in the next one
  std::vector<std::uint32_t> next_;      ///< by section: one behind it that is not covered yet, or nearer to it
  std::vector<std::pair<std::uint32_t, std::uint64_t>> past_;  ///< pieces and how low they could be
  const Order* order_ = nullptr;
  const SearchLimit* limit_ = nullptr;
  std::uint64_t nodes_ = 0, work_ = 0;
  bool stopped_ = false;
};

}  // namespace sluice::planning
