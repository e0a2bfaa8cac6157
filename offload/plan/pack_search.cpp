#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "offload/plan/pack_fit.h"
#include "sluice/plan.h"

namespace sluice::planning {
namespace {

using Turns = std::vector<Turn>;
using Key = std::function<std::pair<double, double>(const Piece&)>;

constexpr std::uint64_t work_limit = 200'000'000;  // about half a second
constexpr int climb_rounds = 1000;

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

/// Plans repeat themselves, so pieces come in kinds: one size, about one length of life. Buffers that take turns, as
/// parameters fetched ahead do, pack well when the pieces of a kind alternate between the lower and the upper end in
/// order of time and the kinds are placed from the outside inwards: what is free then stays in one piece in the middle,
/// where those that live for one op go last. Which kind lies outside which is found by hill climbing over the excess
/// above the target.
class KindSearch {
 public:
  KindSearch(std::span<const Piece> pieces, Fitter& fitter, std::uint64_t target)
      : pieces_(pieces), fitter_(fitter), target_(target) {
    const auto length = [](const Piece& p) { return std::bit_width(p.last - p.first); };
    const Turns turns = order_by(pieces, Fit::lowest, [&](const Piece& p) {
      return std::pair(static_cast<double>(length(p)), static_cast<double>(p.bytes));
    });
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const Piece& p = pieces[turns[i].piece];
      if (i == 0 || p.bytes != pieces[turns[i - 1].piece].bytes || length(p) != length(pieces[turns[i - 1].piece]))
        kinds_.push_back({{}, p.first == p.last ? Ends::low : Ends::low_first});
      kinds_.back().members.push_back(turns[i].piece);
    }
  }

  void run(Placement& best) {
    const std::vector<Kind> given = kinds_;
    climb(best);
    kinds_ = given;
    climb(best);
    arrange();
    climb(best);
  }

 private:
  enum class Ends : std::uint8_t { low, high, low_first, high_first };
  struct Kind {
    std::vector<std::uint32_t> members;  ///< in order of time
    Ends ends = Ends::low_first;
  };

  void climb(Placement& best) {
    std::uint64_t least = ~0ull;
    std::vector<Kind> kept = kinds_;
    for (int round = 0; round < climb_rounds && fitter_.work() < work_limit && best.height > target_; ++round) {
      if (round > 0) change();
      Placement now = fitter_.place(turns(), target_);
      const std::uint64_t excess = excess_of(now);
      if (now.height < best.height) best = std::move(now);
      if (excess <= least) {
        least = excess;
        kept = kinds_;
      } else {
        kinds_ = kept;
      }
    }
  }

  /// The second guess. Outermost, at one end each, what never meets its own kind; then those that take turns, the
  /// largest first; last what lives for one op.
  void arrange() {
    const auto rank = [this](const Kind& k) {
      const Piece& p = pieces_[k.members.front()];
      if (p.first == p.last) return std::pair(2, 0.0);
      for (std::size_t i = 1; i < k.members.size(); ++i)
        if (fitter_.meets(k.members[i - 1], k.members[i])) return std::pair(1, -static_cast<double>(p.bytes));
      return std::pair(0, -static_cast<double>(p.last - p.first));
    };
    std::stable_sort(kinds_.begin(), kinds_.end(), [&](const Kind& a, const Kind& b) { return rank(a) < rank(b); });
    bool high = false;
    for (Kind& k : kinds_) {
      const int group = rank(k).first;
      k.ends = group == 1 ? Ends::low_first : high && group == 0 ? Ends::high : Ends::low;
      high = !high;
    }
  }

  /// One kind gets another turn or other ends, sometimes several.
  void change() {
    do {
      const std::size_t from = random() % kinds_.size(), to = random() % kinds_.size();
      if (random() % 2 == 0) {
        kinds_[from].ends = static_cast<Ends>(random() % 4);
        continue;
      }
      Kind moved = std::move(kinds_[from]);
      kinds_.erase(kinds_.begin() + static_cast<std::ptrdiff_t>(from));
      kinds_.insert(kinds_.begin() + static_cast<std::ptrdiff_t>(to), std::move(moved));
    } while (random() % 3 == 0);
  }

  Turns turns() const {
    Turns turns;
    for (const Kind& k : kinds_) {
      const bool alternates = k.ends == Ends::low_first || k.ends == Ends::high_first;
      bool high = k.ends == Ends::high || k.ends == Ends::high_first;
      for (const std::uint32_t piece : k.members) {
        turns.push_back({piece, high ? Fit::highest : Fit::lowest});
        high ^= alternates;
      }
    }
    return turns;
  }

  std::uint64_t excess_of(const Placement& p) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::uint64_t end = p.offsets[i] + pieces_[i].bytes;
      if (end > target_) sum += end - target_;
    }
    return sum;
  }

  std::uint64_t random() {
    seed_ ^= seed_ << 13, seed_ ^= seed_ >> 7, seed_ ^= seed_ << 17;
    return seed_ >> 11;
  }

  std::span<const Piece> pieces_;
  Fitter& fitter_;
  std::uint64_t target_;
  std::vector<Kind> kinds_;
  std::uint64_t seed_ = 0x9E3779B97F4A7C15ull;
};

}  // namespace

Placement place_pieces(std::span<const Piece> pieces, std::uint64_t good_height, PackEffort effort) {
  const std::uint64_t target = good_height / buffer_alignment_bytes * buffer_alignment_bytes;
  Fitter fitter(pieces);
  Placement best;
  bool first = true;
  for (const Turns& turns : greedy_turns(pieces)) {
    Placement placement = fitter.place(turns, target);
    if (first || placement.height < best.height) best = std::move(placement);
    first = false;
    if (best.height <= target || fitter.work() > work_limit || effort == PackEffort::sketch) return best;
  }
  if (effort == PackEffort::full) KindSearch(pieces, fitter, target).run(best);
  return best;
}

}  // namespace sluice::planning
