#include <algorithm>
#include <functional>
#include <utility>

#include "offload/plan/pack_complete.h"
#include "offload/plan/pack_fit.h"

namespace sluice::planning {
namespace {

using Turns = std::vector<Turn>;
using Key = std::function<std::pair<double, double>(const Piece&)>;

constexpr std::uint64_t greedy_work = 200'000'000;  // about half a second
constexpr std::uint64_t first_work = 50'000'000;    // at the first heights
constexpr std::uint64_t search_work = 60'000'000;   // a third to half a second

/// Pieces by falling key; equal keys by start of life, then index.
Turns order_by(std::span<const Piece> pieces, Fit fit, const Key& key) {
  std::vector<std::pair<double, double>> keys;
  Turns turns;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    keys.push_back(key(pieces[i]));
    turns.push_back({i, fit});
  }
  std::sort(turns.begin(), turns.end(), [&](const Turn& x, const Turn& y) {
    const std::uint32_t a = x.piece, b = y.piece;
    if (keys[a] != keys[b]) return keys[a] > keys[b];
    if (pieces[a].first != pieces[b].first) return pieces[a].first < pieces[b].first;
    return a < b;
  });
  return turns;
}

std::vector<Turns> greedy_turns(std::span<const Piece> pieces) {
  const auto bytes = [](const Piece& p) { return static_cast<double>(p.bytes); };
  const auto life = [](const Piece& p) { return static_cast<double>(p.last - p.first + 1); };
  const auto start = [](const Piece& p) { return -static_cast<double>(p.first); };
  const Fit fit = Fit::smallest;
  return {
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(p.lasting ? 1.0 : 0.0, bytes(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(bytes(p), life(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(life(p), bytes(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(bytes(p) * life(p), bytes(p)); }),
      order_by(pieces, Fit::lowest,
               [&](const Piece& p) { return p.first == p.last ? std::pair(2.0, bytes(p)) : std::pair(1.0, start(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(start(p), bytes(p)); }),
  };
}

/// Where the heights between `open` and the best are known, as far as they are.
struct Heights {
  std::uint64_t open;   ///< none is below this one
  std::uint64_t tried;  ///< nor was one found below this one
};

/// One search at `height`; a placement that it finds replaces the best.
void try_height(std::span<const Piece> pieces, const Sections& sections, std::uint64_t height, SearchLimit limit,
                std::uint64_t& work_left, Heights& heights, Placement& best) {
  SearchEnd end = search_below(sections, height, limit);
  work_left -= std::min(work_left, end.work);
  if (end.kind == SearchEnd::Kind::found) {
    const std::uint64_t found = height_of(pieces, end.offsets);
    best = {std::move(end.offsets), found};
    return;
  }
  heights.tried = height + sections.unit_bytes;
  if (end.kind == SearchEnd::Kind::impossible) heights.open = heights.tried;
}

}  // namespace

std::uint64_t height_of(std::span<const Piece> pieces, std::span<const std::uint64_t> offsets) {
  std::uint64_t height = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) height = std::max(height, offsets[i] + pieces[i].bytes);
  return height;
}

Placement place_greedily(std::span<const Piece> pieces, std::uint64_t good_height, bool first_order_only) {
  Fitter fitter(pieces);
  Placement best;
  bool is_first = true;
  for (const Turns& turns : greedy_turns(pieces)) {
    Placement placement = fitter.place(turns);
    if (is_first || placement.height < best.height) best = std::move(placement);
    is_first = false;
    if (best.height <= good_height || fitter.work() > greedy_work || first_order_only) break;
  }
  best.state = state_of(best.height, max_live_bytes(pieces), good_height);
  return best;
}

Placement search_lower(std::span<const Piece> pieces, std::uint64_t good_height, const SearchLimit& limit,
                       Placement best) {
  const std::uint64_t bound = max_live_bytes(pieces);
  if (best.height <= good_height || pieces.size() > most_searched_pieces) return best;
  const Sections sections = sections_of(pieces);
  const std::uint64_t unit = sections.unit_bytes;
  Heights heights{bound, bound};
  std::uint64_t work_left = limit.work;
  const auto is_done = [&] {
    return best.height <= std::max(good_height, heights.open) || work_left == 0 || (limit.is_over && limit.is_over());
  };
  // From the good height on, halving what is between one that was missed and the best; then again with more for each.
  for (std::uint64_t work = first_work; !is_done(); work *= 4) {
    heights.tried = heights.open;
    std::uint64_t height = std::max(heights.open, good_height / unit * unit);
    for (std::uint64_t most = work; best.height > heights.tried && !is_done();
         most = std::min(work, work_left / 2 + 1)) {
      try_height(pieces, sections, height, {std::min(most, work_left), limit.is_over}, work_left, heights, best);
      height = heights.tried + (best.height - std::min(best.height, heights.tried)) / unit / 2 * unit;
    }
  }
  best.state = state_of(best.height, bound, good_height);
  if (best.state != PackState::at_bound && heights.open >= best.height) best.state = PackState::minimal;
  return best;
}

PackState state_of(std::uint64_t height, std::uint64_t bound, std::uint64_t good_height) {
  return height <= bound ? PackState::at_bound : height <= good_height ? PackState::within : PackState::limited;
}

Placement place_pieces(std::span<const Piece> pieces, std::uint64_t good_height, PackEffort effort) {
  Placement best = place_greedily(pieces, good_height, effort == PackEffort::sketch);
  if (best.height <= good_height || effort != PackEffort::full) return best;
  return search_lower(pieces, good_height, {search_work, nullptr}, std::move(best));
}

}  // namespace sluice::planning
