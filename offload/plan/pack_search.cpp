#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "offload/plan/pack_complete.h"
#include "offload/plan/pack_fit.h"

namespace sluice::planning {
namespace {

using Turns = std::vector<Turn>;

constexpr std::uint64_t greedy_work = 200'000'000;  // about half a second
constexpr std::uint64_t first_work = 50'000'000;    // at the first heights
constexpr std::uint64_t search_work = 120'000'000;  // the half takes a third to half a second

/// A greedy order: pieces by falling key.
struct GreedyOrder {
  Fit fit;
  std::pair<double, double> (*key)(const Piece&);
};

double bytes(const Piece& p) { return static_cast<double>(p.bytes); }
double life(const Piece& p) { return static_cast<double>(life_of(p)); }
double start(const Piece& p) { return -static_cast<double>(p.first); }

// The lasting ones first, and the largest; the largest; the longest lives; the most of both; what one op alone uses,
// the rest in turn; in turn.
constexpr GreedyOrder greedy_orders[] = {
    {Fit::smallest, [](const Piece& p) { return std::pair(p.lasting ? 1.0 : 0.0, bytes(p)); }},
    {Fit::smallest, [](const Piece& p) { return std::pair(bytes(p), life(p)); }},
    {Fit::smallest, [](const Piece& p) { return std::pair(life(p), bytes(p)); }},
    {Fit::smallest, [](const Piece& p) { return std::pair(bytes(p) * life(p), bytes(p)); }},
    {Fit::lowest,
     [](const Piece& p) { return p.first == p.last ? std::pair(2.0, bytes(p)) : std::pair(1.0, start(p)); }},
    {Fit::smallest, [](const Piece& p) { return std::pair(start(p), bytes(p)); }},
};

struct HashOfKey {
  std::size_t operator()(const std::pair<double, double>& key) const {
    return std::hash<double>{}(key.first) * 0x9E3779B97F4A7C15ull ^ std::hash<double>{}(key.second);
  }
};

/// Equal keys by start of life, then index, as they are in `by_first`. Plans have many pieces of few kinds: kinds are
/// sorted, and pieces counted into their places.
Turns turns_of(std::span<const Piece> pieces, std::span<const std::uint32_t> by_first, const GreedyOrder& order) {
  std::unordered_map<std::pair<double, double>, std::uint32_t, HashOfKey> kind_of;
  std::vector<std::pair<std::pair<double, double>, std::uint32_t>> kinds;
  std::vector<std::uint32_t> kind(pieces.size()), at;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [found, is_new] = kind_of.try_emplace(order.key(pieces[i]), static_cast<std::uint32_t>(kinds.size()));
    if (is_new) kinds.emplace_back(found->first, found->second), at.push_back(0);
    ++at[kind[i] = found->second];
  }
  std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::uint32_t begin = 0;
  for (const auto& [key, k] : kinds) begin += std::exchange(at[k], begin);
  Turns turns(pieces.size());
  for (const std::uint32_t i : by_first) turns[at[kind[i]]++] = {i, order.fit};
  return turns;
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
  for (const GreedyOrder& order : greedy_orders) {
    Placement placement = fitter.place(turns_of(pieces, fitter.by_first(), order));
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
