// Placing buffers with known lives in one address range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/plan/finish.h"
#include "sluice/plan.h"

namespace sluice::planning {

struct SearchLimit;  // pack_complete.h

/// A transient buffer to place: alive in program order from op `first` to op `last`, both included.
struct Piece {
  std::uint32_t first = 0, last = 0;
  std::uint64_t bytes = 0;
  bool lasting = false;
  std::uint64_t life = 0;   ///< how long it lives, where moments are numbered in their order; 0: as moments say
  std::uint64_t floor = 0;  ///< it lies no lower
};

/// How long a piece lives: a measure that orders of trying use, and nothing else.
inline std::uint64_t life_of(const Piece& p) { return p.life > 0 ? p.life : std::uint64_t{p.last} - p.first + 1; }

struct Placement {
  std::vector<std::uint64_t> offsets;  ///< per piece, from 0
  std::uint64_t height = 0;            ///< highest end
  PackState state = PackState::limited;
};

/// Where a piece goes among the gaps that it fits during its life. A piece that fits nowhere goes on top.
enum class Fit : std::uint8_t { smallest, lowest };

/// One piece's turn.
struct Turn {
  std::uint32_t piece;
  Fit fit;
};

/// Places pieces one after the other. About pieces x (neighbours in time) steps.
class Fitter {
 public:
  explicit Fitter(std::span<const Piece> pieces);
  Placement place(std::span<const Turn> turns);
  bool meets(std::uint32_t a, std::uint32_t b) const {
    return pieces_[a].first <= pieces_[b].last && pieces_[b].first <= pieces_[a].last;
  }
  /// Pieces by start of life, then index.
  std::span<const std::uint32_t> by_first() const { return by_first_; }
  /// A deterministic measure of the work so far: steps, as if all that live long were looked at each time.
  std::uint64_t work() const { return work_; }

 private:
  /// A piece that has its place: what is walked over, without looking elsewhere.
  struct Placed {
    std::uint32_t first, last;
    std::uint64_t offset, end;
    bool operator<(const Placed& other) const { return offset < other.offset; }
  };
  /// Pieces with long lives, by offset: those that are there all the time as the ranges that they take together.
  struct Window {
    std::vector<Placed> always, partly;
  };
  std::uint64_t offset_for(const Turn& turn);
  Placed placed(std::uint32_t piece) const;
  bool neighbours(std::uint32_t piece);
  void insert_long(const Placed& piece);
  template <class Consider>
  void each_neighbour(std::uint32_t piece, Consider consider);
  void settle();
  void visit(std::uint32_t node, std::uint32_t lo, std::uint32_t hi, const Piece& p, std::size_t limit);
  void insert(std::uint32_t piece);

  std::span<const Piece> pieces_;
  std::vector<std::uint32_t> by_first_, place_in_first_;  ///< pieces by start of life, and back
  std::uint32_t leaves_ = 1;
  std::vector<bool> is_long_;           ///< lives long: meets many
  std::vector<std::uint32_t> tree_;     ///< 1 + latest end of the placed short lives below a node; 0 none
  std::vector<Placed> long_by_offset_;  ///< with long lives
  std::uint32_t window_ops_ = 1;        ///< half a window
  std::vector<Window> windows_;         ///< of those, by i: who lives in ops [i, i + 2) x window_ops_
  std::vector<Placed> by_offset_;       ///< all, but for `unsettled_`
  std::vector<Placed> unsettled_;       ///< since they were last walked over, in turn
  std::vector<Placed> found_;
  Placement placement_;
  std::uint64_t work_ = 0;
};

/// Highest end of any piece.
std::uint64_t height_of(std::span<const Piece> pieces, std::span<const std::uint64_t> offsets);

/// Most bytes alive at any one op, and below them the lowest floor of those: no placement is lower.
std::uint64_t max_live_bytes(std::span<const Piece> pieces);

/// What a height is known to be by itself.
PackState state_of(std::uint64_t height, std::uint64_t bound, std::uint64_t good_height);

/// The first that is not above good_height, or else the lowest, of several greedy orders.
Placement place_greedily(std::span<const Piece> pieces, std::uint64_t good_height, bool first_order_only);

/// A lower placement than `best`, by the complete search (pack_complete.h): one that is not above good_height, or the
/// lowest that heights tried one after the other lead to within the limit. No piece may be without bytes.
Placement search_lower(std::span<const Piece> pieces, std::uint64_t good_height, const SearchLimit& limit,
                       Placement best);

/// Greedy orders and then the search, within a fixed amount of work, as far as the effort goes.
Placement place_pieces(std::span<const Piece> pieces, std::uint64_t good_height, PackEffort effort);

}  // namespace sluice::planning
