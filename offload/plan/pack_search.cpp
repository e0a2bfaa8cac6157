#include <algorithm>
#include <functional>
#include <numeric>

#include "offload/plan/pack_fit.h"

namespace sluice::planning {
namespace {

using Turns = std::vector<Turn>;
using Key = std::function<std::pair<double, double>(const Piece&)>;

constexpr std::uint64_t work_limit = 400'000'000;  // about a second
constexpr int rounds_per_start = 60;

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

/// Buffers that take turns (parameters fetched ahead) from both ends: pieces of one size alternate between the lower
/// and the upper end in order of time, so that what is free stays in one piece in the middle, where short ones go last.
Turns from_both_ends(std::span<const Piece> pieces, bool lasting_first) {
  Turns turns = order_by(pieces, Fit::smallest, [&](const Piece& p) {
    const double group = p.first == p.last ? 0 : lasting_first && p.lasting ? 2 : 1;
    return std::pair(group, static_cast<double>(p.bytes));
  });
  bool high = false;
  for (std::size_t i = 1; i < turns.size(); ++i) {
    const Piece &p = pieces[turns[i].piece], &before = pieces[turns[i - 1].piece];
    if (p.first == p.last || (lasting_first && p.lasting)) continue;
    high = p.bytes == before.bytes && !high;
    if (high) turns[i].fit = Fit::highest;
  }
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
      from_both_ends(pieces, true),
      from_both_ends(pieces, false),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(life(p), bytes(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(bytes(p) * life(p), bytes(p)); }),
      order_by(pieces, Fit::lowest,
               [&](const Piece& p) { return p.first == p.last ? std::pair(2.0, bytes(p)) : std::pair(1.0, start(p)); }),
      order_by(pieces, fit, [&](const Piece& p) { return std::pair(start(p), bytes(p)); }),
  };
}

/// Squeaky wheels (Joslin and Clements 1999): for each piece that ended above the target, it gets an earlier turn, or
/// one of those that were in its way goes to the other end; and again.
class Search {
 public:
  Search(std::span<const Piece> pieces, Fitter& fitter, std::uint64_t target)
      : pieces_(pieces), fitter_(fitter), target_(target) {}

  void run(const Turns& from, Placement& best) {
    Turns turns = from, best_turns = from;
    std::uint64_t least = ~0ull;
    int stale = 0;
    for (int round = 0; round < rounds_per_start && fitter_.work() < work_limit; ++round) {
      Placement now = fitter_.place(turns, target_);
      const std::uint64_t excess = excess_of(now);
      if (excess < least) {
        least = excess;
        best_turns = turns;
        stale = 0;
      } else if (++stale > 12) {
        turns = best_turns;
        stale = 0;
      }
      favour_excess(now, turns);
      if (now.height < best.height) best = std::move(now);
      if (best.height <= target_) return;
    }
  }

 private:
  std::uint64_t excess_of(const Placement& p) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::uint64_t end = p.offsets[i] + pieces_[i].bytes;
      if (end > target_) sum += end - target_;
    }
    return sum;
  }

  void favour_excess(const Placement& placement, Turns& turns) {
    for (std::size_t i = 1; i < turns.size(); ++i) {
      const std::uint32_t piece = turns[i].piece;
      if (placement.offsets[piece] + pieces_[piece].bytes <= target_) continue;
      // One of the neighbours in time that came before it, each as likely.
      std::size_t turn = i, seen = 0;
      for (std::size_t j = 0; j < i; ++j)
        if (fitter_.meets(turns[j].piece, piece) && random() % ++seen == 0) turn = j;
      if (random() % 2 == 0) {
        turns[turn].fit = turns[turn].fit == Fit::highest ? Fit::smallest : Fit::highest;
        continue;
      }
      const auto at = turns.begin();
      std::rotate(at + static_cast<std::ptrdiff_t>(turn), at + static_cast<std::ptrdiff_t>(i),
                  at + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  std::uint64_t random() {
    seed_ ^= seed_ << 13, seed_ ^= seed_ >> 7, seed_ ^= seed_ << 17;
    return seed_;
  }

  std::span<const Piece> pieces_;
  Fitter& fitter_;
  std::uint64_t target_;
  std::uint64_t seed_ = 0x9E3779B97F4A7C15ull;
};

}  // namespace

Placement place_pieces(std::span<const Piece> pieces) {
  const std::uint64_t target = max_live_bytes(pieces) / 50 * 51;
  Fitter fitter(pieces);
  Placement best;
  const std::vector<Turns> starts = greedy_turns(pieces);
  std::vector<std::pair<std::uint64_t, std::size_t>> heights;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Placement placement = fitter.place(starts[i], target);
    heights.push_back({placement.height, i});
    if (i == 0 || placement.height < best.height) best = std::move(placement);
    if (best.height <= target || fitter.work() > work_limit) return best;
  }
  std::sort(heights.begin(), heights.end());
  Search search(pieces, fitter, target);
  for (const auto& [height, i] : heights)
    if (best.height > target) search.run(starts[i], best);
  return best;
}

}  // namespace sluice::planning
