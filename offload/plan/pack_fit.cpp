#include "offload/plan/pack_fit.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

namespace sluice::planning {
namespace {

/// A life is long that takes more than this part of the plan.
constexpr std::uint32_t long_share = 256;
/// Windows of a plan overlap by halves, so that a life of half a window is within one of them.
constexpr std::uint32_t window_share = 64;
/// Of fewer pieces they take more time than they save.
constexpr std::size_t pieces_of_windows = 4096;

}  // namespace

Fitter::Fitter(std::span<const Piece> pieces) : pieces_(pieces), by_first_(pieces.size()), is_long_(pieces.size()) {
  std::uint32_t end = 0;
  for (const Piece& p : pieces) end = std::max(end, p.last);
  for (std::size_t i = 0; i < pieces.size(); ++i) is_long_[i] = pieces[i].last - pieces[i].first > end / long_share;
  window_ops_ = end / window_share + 1;
  std::vector<std::uint32_t> at(std::size_t{end} + 2);  // where those that begin at an op go
  for (const Piece& p : pieces) ++at[std::size_t{p.first} + 1];
  std::partial_sum(at.begin(), at.end(), at.begin());
  for (std::uint32_t i = 0; i < pieces.size(); ++i) by_first_[at[pieces[i].first]++] = i;
  place_in_first_.resize(pieces.size());
  for (std::uint32_t i = 0; i < by_first_.size(); ++i) place_in_first_[by_first_[i]] = i;
  while (leaves_ < pieces.size()) leaves_ *= 2;
}

Fitter::Placed Fitter::placed(std::uint32_t piece) const {
  const Piece& p = pieces_[piece];
  return {p.first, p.last, placement_.offsets[piece], placement_.offsets[piece] + p.bytes};
}

/// Adds to found_ the placed pieces that live at the same time as p, gives up beyond `limit`.
void Fitter::visit(std::uint32_t node, std::uint32_t lo, std::uint32_t hi, const Piece& p, std::size_t limit) {
  ++work_;
  if (tree_[node] <= p.first || found_.size() > limit) return;
  if (lo >= pieces_.size() || pieces_[by_first_[lo]].first > p.last) return;
  if (hi - lo == 1) {
    found_.push_back(placed(by_first_[lo]));
    return;
  }
  const std::uint32_t middle = (lo + hi) / 2;
  visit(2 * node, lo, middle, p, limit);
  visit(2 * node + 1, middle, hi, p, limit);
}

/// Where few short lives meet the piece's, a search tree finds them; where many do, a walk over all pieces is quicker
/// than sorting what a search found. True if found_ is to be used.
bool Fitter::neighbours(std::uint32_t piece) {
  found_.clear();
  const std::size_t limit = 32 + (by_offset_.size() + unsettled_.size()) / 16;
  visit(1, 0, leaves_, pieces_[piece], limit);
  if (found_.size() > limit) {
    settle();
    return false;
  }
  std::sort(found_.begin(), found_.end());
  work_ += 8 * found_.size();
  return true;
}

/// Placed pieces that live at the same time, from the lowest up, until `consider` has enough; pieces without a gap
/// between them may come as one.
template <class Consider>
void Fitter::each_neighbour(std::uint32_t piece, Consider consider) {
  const auto [first, last] = std::pair(pieces_[piece].first, pieces_[piece].last);
  const auto meets = [=](const Placed& other) { return other.first <= last && first <= other.last; };
  if (!neighbours(piece)) {
    work_ += by_offset_.size();
    for (const Placed& other : by_offset_)
      if (meets(other) && consider(other)) return;
    return;
  }
  work_ += long_by_offset_.size();
  const bool in_window = !windows_.empty() && last - first <= window_ops_;
  const std::vector<Placed>& partly = in_window ? windows_[first / window_ops_].partly : long_by_offset_;
  auto brief = found_.begin();
  auto always = in_window ? windows_[first / window_ops_].always.begin() : long_by_offset_.end();
  const auto always_end = in_window ? windows_[first / window_ops_].always.end() : always;
  /// Those of the other two lists that begin below.
  const auto goes_up_to = [&](std::uint64_t offset) {
    for (;;) {
      const bool is_brief = brief != found_.end() && brief->offset < offset,
                 is_always = always != always_end && always->offset < offset;
      if (!is_brief && !is_always) return false;
      if (consider(is_brief && !(is_always && *always < *brief) ? *brief++ : *always++)) return true;
    }
  };
  for (const Placed& other : partly)
    if (meets(other) && (goes_up_to(other.offset) || consider(other))) return;
  goes_up_to(~0ull);
}

/// Of pieces at one offset those that were placed first come first.
void Fitter::settle() {
  std::stable_sort(unsettled_.begin(), unsettled_.end());
  const auto middle = static_cast<std::ptrdiff_t>(by_offset_.size());
  by_offset_.insert(by_offset_.end(), unsettled_.begin(), unsettled_.end());
  std::inplace_merge(by_offset_.begin(), by_offset_.begin() + middle, by_offset_.end());
  unsettled_.clear();
}

void Fitter::insert_long(const Placed& piece) {
  const auto insert = [&](std::vector<Placed>& list) {
    return list.insert(std::upper_bound(list.begin(), list.end(), piece), piece);
  };
  insert(long_by_offset_);
  if (windows_.empty()) return;
  const std::uint32_t begin = piece.first / window_ops_;
  for (std::uint32_t i = begin > 0 ? begin - 1 : 0; i <= piece.last / window_ops_; ++i) {
    const bool is_always = piece.first <= i * window_ops_ && (i + 2) * window_ops_ <= piece.last;
    if (!is_always) {
      insert(windows_[i].partly);
      continue;
    }
    // All live at the same time, so that no two share an address.
    std::vector<Placed>& list = windows_[i].always;
    auto at = insert(list);
    if (at != list.begin() && std::prev(at)->end == at->offset) {
      std::prev(at)->end = at->end;
      at = std::prev(list.erase(at));
    }
    if (const auto next = std::next(at); next != list.end() && at->end == next->offset) {
      at->end = next->end;
      list.erase(next);
    }
  }
}

void Fitter::insert(std::uint32_t piece) {
  unsettled_.push_back(placed(piece));
  if (is_long_[piece]) {
    insert_long(unsettled_.back());
    return;
  }
  const std::uint32_t end = pieces_[piece].last + 1;
  for (std::uint32_t node = leaves_ + place_in_first_[piece]; node > 0; node /= 2)
    tree_[node] = std::max(tree_[node], end);
}

std::uint64_t Fitter::offset_for(const Turn& turn) {
  const std::uint64_t bytes = pieces_[turn.piece].bytes;
  std::uint64_t top = pieces_[turn.piece].floor, best_gap = ~0ull, best = 0;
  each_neighbour(turn.piece, [&](const Placed& other) {
    if (other.offset > top && other.offset - top >= bytes && other.offset - top < best_gap) {
      best = top;
      best_gap = other.offset - top;
      if (turn.fit == Fit::lowest || best_gap == bytes) return true;
    }
    top = std::max(top, other.end);
    return false;
  });
  return best_gap == ~0ull ? top : best;
}

Placement Fitter::place(std::span<const Turn> turns) {
  tree_.assign(std::size_t{2} * leaves_, 0);
  by_offset_.clear();
  long_by_offset_.clear();
  windows_.resize(pieces_.size() < pieces_of_windows ? 0 : window_share + 1);
  for (Window& window : windows_) {
    window.always.clear();
    window.partly.clear();
  }
  unsettled_.clear();
  placement_ = {std::vector<std::uint64_t>(pieces_.size()), 0, PackState::limited};
  for (const Turn& turn : turns) {
    const std::uint64_t offset = offset_for(turn);
    placement_.offsets[turn.piece] = offset;
    placement_.height = std::max(placement_.height, offset + pieces_[turn.piece].bytes);
    insert(turn.piece);
  }
  return std::move(placement_);
}

std::uint64_t max_live_bytes(std::span<const Piece> pieces) {
  std::uint32_t end = 0;
  for (const Piece& p : pieces) end = std::max(end, p.last + 1);
  std::vector<std::int64_t> change(std::size_t{end} + 1);
  for (const Piece& p : pieces) {
    change[p.first] += static_cast<std::int64_t>(p.bytes);
    change[std::size_t{p.last} + 1] -= static_cast<std::int64_t>(p.bytes);
  }
  std::int64_t live = 0, most = 0;
  if (std::ranges::all_of(pieces, [](const Piece& p) { return p.floor == 0; })) {
    for (const std::int64_t c : change) most = std::max(most, live += c);
    return static_cast<std::uint64_t>(most);
  }
  std::vector<std::vector<std::uint64_t>> begins(end), ends(end);
  for (const Piece& p : pieces) begins[p.first].push_back(p.floor), ends[p.last].push_back(p.floor);
  std::multiset<std::uint64_t> floors;
  for (std::uint32_t op = 0; op < end; ++op) {
    live += change[op];
    floors.insert(begins[op].begin(), begins[op].end());
    if (!floors.empty()) most = std::max(most, live + static_cast<std::int64_t>(*floors.begin()));
    for (const std::uint64_t floor : ends[op]) floors.erase(floors.find(floor));
  }
  return static_cast<std::uint64_t>(most);
}

}  // namespace sluice::planning
