#include "offload/plan/pack_complete.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/plan/pack_orders.h"
#include "offload/plan/pack_rising.h"
#include "sluice/status.h"

namespace sluice::planning {
namespace {

constexpr std::size_t memory_keys = std::size_t{1} << 18;
constexpr std::uint64_t nodes_per_piece = 3;  ///< of a search before another order has its turn, at first
constexpr std::uint64_t rising_passes = 2;    ///< of the other tree: work, in passes of this one
constexpr std::uint32_t no_piece = ~0u;

/// Which of the ready pieces is next; then the lowest, then by order.
enum class Focus : std::uint8_t {
  none,
  last_failure,   ///< those alive in the section where the search failed last
  mean_failures,  ///< in sections that have failed often
  all_failures,   ///< the same, long lives first
};

constexpr std::array<Focus, 4> focuses{Focus::none, Focus::last_failure, Focus::mean_failures, Focus::all_failures};
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// `Units` holds twice the height: 32 bits where they do, since sections are then added up twice as fast.
template <class Units>
class Search {
 public:
  Search(const Sections& sections, std::uint64_t capacity, const SearchLimit& limit)
      : sections_(sections), capacity_(static_cast<Units>(capacity)), limit_(limit) {
    const std::size_t n = sections.spans.size();
    for (const SectionSpan& s : sections.spans) pieces_.push_back({s.first, s.last, static_cast<Units>(s.units)});
    low_.resize(n), earliest_.resize(n), offsets_.resize(n);
    placed_.resize(n), skipped_.resize(n), rank_.resize(n), twin_.resize(n, no_piece);
    above_.resize(sections.count), least_end_.resize(sections.count), failures_.resize(sections.count);
    failed_.resize(memory_keys);
    by_start_.resize(n);
    std::iota(by_start_.begin(), by_start_.end(), 0u);
    std::stable_sort(by_start_.begin(), by_start_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return pieces_[a].first < pieces_[b].first; });
    neighbours_ = neighbours_of(sections);
    find_twins();
  }

  SearchEnd run() {
    std::uint64_t nodes = nodes_per_piece * pieces_.size();
    for (;; nodes += nodes / 2 + 1) {
      const std::uint64_t work_before = work_;
      for (const Focus focus : focuses)
        for (const Order& order : orders) {
          begin(order, focus, nodes);
          const bool found = place_all();
          if (found) return {SearchEnd::Kind::found, placed_bytes(), work_};
          if (!stopped_) return {SearchEnd::Kind::impossible, {}, work_};
          if (is_spent()) return {SearchEnd::Kind::limit, {}, work_};
        }
      if (pieces_.size() > most_rising_pieces) continue;
      if (!rising_) rising_.emplace(sections_, neighbours_, capacity_);
      const std::uint64_t share = (work_ - work_before) / (focuses.size() * orders.size());
      for (const Order& order : orders) {
        SearchEnd end = rising_->pass(order, {rising_passes * share, limit_.is_over});
        work_ += end.work;
        end.work = work_;
        if (end.kind != SearchEnd::Kind::limit || is_spent()) return end;
      }
    }
  }

 private:
  struct Brick {
    std::uint32_t first, last;
    Units size;
  };
  struct Past {
    std::uint32_t piece;
    Units low;
    bool skipped;
  };
  struct Mark {
    std::size_t past, placed, lists;
  };

  std::vector<std::uint64_t> placed_bytes() const {
    std::vector<std::uint64_t> bytes;
    for (const Units offset : offsets_) bytes.push_back(std::uint64_t{offset} * sections_.unit_bytes);
    return bytes;
  }

  bool meet(std::uint32_t a, std::uint32_t b) const {
    return pieces_[a].first <= pieces_[b].last && pieces_[b].first <= pieces_[a].last;
  }
  Units end_of(std::uint32_t piece) const { return low_[piece] + pieces_[piece].size; }

  void find_twins() {
    std::map<std::tuple<std::uint32_t, std::uint32_t, Units, std::uint64_t>, std::uint32_t> seen;
    for (const std::uint32_t i : by_start_) {
      const auto [at, is_new] =
          seen.try_emplace({pieces_[i].first, pieces_[i].last, pieces_[i].size, sections_.spans[i].floor}, i);
      if (!is_new) twin_[i] = std::exchange(at->second, i);
    }
  }

  void rank_by(const Order& order) {
    std::vector<std::array<std::uint64_t, 3>> keys;
    for (SectionSpan span : sections_.spans) {
      span.life = span.last - span.first + 1;  // in sections: RisingSearch has the other measure
      keys.push_back(key_of(span, order, sections_.units));
    }
    std::vector<std::uint32_t> turns(pieces_.size());
    std::iota(turns.begin(), turns.end(), 0u);
    std::stable_sort(turns.begin(), turns.end(), [&](std::uint32_t a, std::uint32_t b) { return keys[a] > keys[b]; });
    for (std::uint32_t i = 0; i < turns.size(); ++i) rank_[turns[i]] = i;
  }

  void begin(const Order& order, Focus focus, std::uint64_t nodes) {
    rank_by(order);
    focus_ = focus;
    nodes_left_ = nodes;
    stopped_ = false;
    std::ranges::transform(sections_.spans, low_.begin(),
                           [](const SectionSpan& s) { return static_cast<Units>(s.floor); });
    std::fill(placed_.begin(), placed_.end(), false);
    std::fill(skipped_.begin(), skipped_.end(), false);
    past_.clear(), stack_.clear(), keys_.clear(), parts_.clear();
    lists_ = by_start_;
  }

  bool is_spent() const { return work_ >= limit_.work || (limit_.is_over && limit_.is_over()); }

  /// A part in hand: what is unplaced in lists_ from `from` to `to`, by start of life, and meets. Without the piece
  /// that was put last the rest of it falls into parts that share no section: parts_ from `parts` to `parts_end`, the
  /// first of them in hand or done up to `next`.
  struct Level {
    std::size_t from = 0, to = 0;
    Mark start{};               ///< before anything of it was placed
    std::size_t first_key = 0;  ///< of keys_
    std::uint32_t piece = no_piece;
    Mark before{};  ///< before that piece was put
    std::size_t parts = 0, next = 0, parts_end = 0;
  };

  /// The parts of what is unplaced in lists_ from `from` to `to`; the smallest go first, since a failure ends all.
  void split(Level& level, std::size_t from, std::size_t to) {
    level.parts = level.next = parts_.size();
    std::uint32_t reach = 0;
    for (std::size_t at = from; at < to; ++at) {
      const Brick& p = pieces_[lists_[at]];
      if (at == from || p.first > reach) parts_.emplace_back(at, at);
      parts_.back().second = at + 1;
      reach = std::max(reach, p.last);
    }
    level.parts_end = parts_.size();
    std::stable_sort(parts_.begin() + static_cast<std::ptrdiff_t>(level.parts), parts_.end(),
                     [](const auto& a, const auto& b) { return a.second - a.first < b.second - b.first; });
  }

  /// Puts the next piece of a part. False where there is none: the part can not be placed, or the search stopped.
  bool put_next(Level& level) {
    if (nodes_left_ == 0 || ((nodes_left_ & 255) == 0 && is_spent())) stopped_ = true;
    if (stopped_) return false;
    --nodes_left_;
    level.piece = bounds_hold(level.from, level.to) ? choose(level.from, level.to) : no_piece;
    if (level.piece == no_piece) return false;
    level.before = mark();
    put(level.piece);
    for (std::size_t at = level.from; at < level.to; ++at)
      if (lists_[at] != level.piece) lists_.push_back(lists_[at]);
    split(level, level.before.lists, lists_.size());
    return true;
  }

  /// Takes back the piece that was put last: it lies higher.
  void skip(const Level& level) {
    undo(level.before);
    parts_.resize(level.parts);
    if (stopped_) return;
    past_.push_back({level.piece, low_[level.piece], false});
    skipped_[level.piece] = true;
  }

  /// The part is placed, or everything is left as it was.
  void leave(bool is_placed) {
    const Level& level = levels_.back();
    if (is_placed) parts_.resize(level.parts);
    if (!is_placed) undo(level.start);
    if (!is_placed && !stopped_)
      for (std::size_t i = level.first_key; i < keys_.size(); ++i) failed_[slot_of(keys_[i])] = keys_[i];
    keys_.resize(level.first_key);
    levels_.pop_back();
  }

  /// Places all pieces. There are up to as many levels as pieces, too many for calls inside calls.
  bool place_all() {
    levels_.assign(1, {});
    split(levels_.back(), 0, lists_.size());
    for (bool holds = true;;) {
      Level& level = levels_.back();
      const bool is_root = levels_.size() == 1;
      if (holds && level.next == level.parts_end) {
        if (is_root) return true;
        leave(true);
        continue;
      }
      if (holds) {
        const auto [from, to] = parts_[level.next++];
        levels_.push_back({.from = from, .to = to, .start = mark(), .first_key = keys_.size()});
      } else {
        if (is_root) return false;
        skip(level);
      }
      holds = put_next(levels_.back());
      if (!holds) leave(false);
    }
  }

  static std::size_t slot_of(std::uint64_t key) { return key >> 32 & (memory_keys - 1); }

  /// Whether the part can still be placed, as far as bounds tell; sets earliest_ of its pieces and by_earliest_.
  bool bounds_hold(std::size_t from, std::size_t to) {
    const std::span part(lists_.data() + from, to - from);
    work_ += 4 * part.size();
    std::uint64_t key = 0;
    skipped_here_.clear();
    part_first_ = pieces_[part.front()].first, part_last_ = 0;
    for (const std::uint32_t i : part) {
      if (end_of(i) > capacity_) return fails_at(pieces_[i].first);
      part_last_ = std::max(part_last_, pieces_[i].last);
      key += mixed((std::uint64_t{low_[i]} * pieces_.size() + i) * 2 + skipped_[i]);
      earliest_[i] = low_[i];
      if (skipped_[i]) skipped_here_.push_back(i);
    }
    key |= 1;
    if (failed_[slot_of(key)] == key) return false;
    keys_.push_back(key);
    if (!lift_skipped()) return false;
    by_earliest_.clear();
    for (const std::uint32_t i : part) {
      if (const std::uint32_t twin = twin_[i]; twin != no_piece && !placed_[twin])
        earliest_[i] = std::max<Units>(earliest_[i], earliest_[twin] + pieces_[twin].size);
      if (earliest_[i] + pieces_[i].size > capacity_) return fails_at(pieces_[i].first);
      by_earliest_.push_back(i);
    }
    std::sort(by_earliest_.begin(), by_earliest_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return earliest_[a] != earliest_[b] ? earliest_[a] > earliest_[b] : a < b;
    });
    return sections_hold();
  }

  /// A skipped piece lies on one that it meets and that is lower than the piece would reach: or else it would fall.
  bool lift_skipped() {
    bool has_changed = true;
    for (int round = 0; round < 3 && has_changed; ++round) {
      has_changed = false;
      for (const std::uint32_t i : skipped_here_) {
        Units least = std::numeric_limits<Units>::max();
        work_ += neighbours_[i].size();
        for (const std::uint32_t k : neighbours_[i])
          if (!placed_[k] && earliest_[k] < end_of(i)) least = std::min<Units>(least, earliest_[k] + pieces_[k].size);
        if (least > capacity_ - pieces_[i].size) return fails_at(pieces_[i].first);
        if (least > earliest_[i]) earliest_[i] = least, has_changed = true;
      }
    }
    return true;
  }

  /// Pieces of a section that begin at some offset or above it have room there.
  bool sections_hold() {
    std::fill(above_.begin() + part_first_, above_.begin() + part_last_ + 1, Units{0});
    work_ += (part_last_ - part_first_) / 4;
    for (const std::uint32_t i : by_earliest_) {
      const Brick& p = pieces_[i];
      Units most = 0;
      for (std::uint32_t s = p.first; s <= p.last; ++s) {
        above_[s] += p.size;
        most = std::max(most, above_[s]);
      }
      work_ += 2 + (p.last - p.first) / 2;
      if (most <= capacity_ - earliest_[i]) continue;
      return fails_at(
          static_cast<std::uint32_t>(std::find(above_.begin() + p.first, above_.end(), most) - above_.begin()));
    }
    return true;
  }

  bool fails_at(std::uint32_t section) {
    last_failure_ = section;
    ++failures_[section];
    return false;
  }

  /// The next piece of a part whose bounds hold, or none where no ready one is left.
  std::uint32_t choose(std::size_t from, std::size_t to) {
    std::fill(least_end_.begin() + part_first_, least_end_.begin() + part_last_ + 1, std::numeric_limits<Units>::max());
    for (const std::uint32_t i : by_earliest_)
      for (std::uint32_t s = pieces_[i].first; s <= pieces_[i].last; ++s)
        least_end_[s] = std::min(least_end_[s], end_of(i));
    std::uint32_t best = no_piece;
    double best_score = 0;
    for (std::size_t at = from; at < to; ++at) {
      const std::uint32_t i = lists_[at];
      const Brick& p = pieces_[i];
      if (skipped_[i] || (twin_[i] != no_piece && !placed_[twin_[i]])) continue;
      if (best != no_piece && focus_ == Focus::none && !is_before(i, best)) continue;
      work_ += 2 + (p.last - p.first) / 2;
      if (std::any_of(least_end_.begin() + p.first, least_end_.begin() + p.last + 1,
                      [&](Units end) { return end <= low_[i]; }))
        continue;
      const double score = score_of(p);
      if (best == no_piece || score > best_score || (score == best_score && is_before(i, best)))
        best = i, best_score = score;
    }
    return best;
  }

  bool is_before(std::uint32_t a, std::uint32_t b) const {
    return low_[a] != low_[b] ? low_[a] < low_[b] : rank_[a] < rank_[b];
  }

  double score_of(const Brick& p) const {
    if (focus_ == Focus::none) return 0;
    if (focus_ == Focus::last_failure) return p.first <= last_failure_ && last_failure_ <= p.last ? 1 : 0;
    const auto sum = static_cast<double>(
        std::accumulate(failures_.begin() + p.first, failures_.begin() + p.last + 1, std::uint64_t{0}));
    return focus_ == Focus::all_failures ? sum : sum / (p.last - p.first + 1);
  }

  /// Puts a ready piece where it is; what it meets lies above.
  void put(std::uint32_t piece) {
    placed_[piece] = true;
    stack_.push_back(piece);
    offsets_[piece] = low_[piece];
    work_ += neighbours_[piece].size();
    for (const std::uint32_t k : neighbours_[piece]) {
      if (placed_[k] || low_[k] >= end_of(piece)) continue;
      past_.push_back({k, low_[k], skipped_[k] != 0});
      low_[k] = end_of(piece);
      skipped_[k] = false;
    }
  }

  Mark mark() const { return {past_.size(), stack_.size(), lists_.size()}; }
  void undo(const Mark& to) {
    for (; stack_.size() > to.placed; stack_.pop_back()) placed_[stack_.back()] = false;
    for (; past_.size() > to.past; past_.pop_back()) {
      low_[past_.back().piece] = past_.back().low;
      skipped_[past_.back().piece] = past_.back().skipped;
    }
    lists_.resize(to.lists);
  }

  const Sections& sections_;
  Units capacity_;
  const SearchLimit& limit_;
  std::vector<Brick> pieces_;
  Neighbours neighbours_;
  std::vector<std::uint32_t> by_start_, rank_;
  std::vector<std::uint32_t> twin_;             ///< the identical piece before this one
  std::vector<Units> low_;                      ///< highest end of what is placed and meets the piece
  std::vector<Units> earliest_;                 ///< the piece begins here or higher
  std::vector<Units> offsets_;                  ///< of placed pieces
  std::vector<std::uint8_t> placed_, skipped_;  ///< skipped: lies above low_
  std::vector<Past> past_;                      ///< what to put back
  std::vector<std::uint32_t> stack_;            ///< placed pieces in turn
  std::vector<std::uint32_t> lists_;            ///< of the parts that are being placed, one behind the other
  std::vector<std::pair<std::size_t, std::size_t>> parts_;  ///< in lists_: of the parts that are being placed
  std::vector<Level> levels_;                 ///< the parts that are being placed, each one of the one before
  std::vector<std::uint64_t> keys_, failed_;  ///< of the parts that are being placed; of those that can not be
  std::vector<std::uint32_t> skipped_here_, by_earliest_;
  std::vector<Units> above_, least_end_;          ///< by section
  std::vector<std::uint64_t> failures_;           ///< by section
  std::uint32_t part_first_ = 0, part_last_ = 0;  ///< sections of the part in hand
  std::uint32_t last_failure_ = 0;
  Focus focus_ = Focus::none;
  std::optional<RisingSearch> rising_;  ///< takes turns with this one
  std::uint64_t nodes_left_ = 0, work_ = 0;
  bool stopped_ = false;
};

}  // namespace

SearchEnd search_below(const Sections& sections, std::uint64_t height_bytes, const SearchLimit& limit) {
  if (sections.spans.empty()) return {SearchEnd::Kind::found, {}, 0};
  const std::uint64_t capacity = height_bytes / sections.unit_bytes;
  if (*std::max_element(sections.units.begin(), sections.units.end()) > capacity)
    return {SearchEnd::Kind::impossible, {}, 0};
  SLUICE_CHECK(sections.spans.size() <= most_searched_pieces, "%zu pieces", sections.spans.size());
  SLUICE_CHECK(capacity < std::uint64_t{1} << 62, "a height of %llu units", static_cast<unsigned long long>(capacity));
  if (capacity < std::uint64_t{1} << 30) return Search<std::uint32_t>(sections, capacity, limit).run();
  return Search<std::uint64_t>(sections, capacity, limit).run();
}

SearchEnd search_pieces(std::span<const Piece> pieces, std::uint64_t height_bytes, const SearchLimit& limit) {
  if (pieces.size() <= most_searched_pieces) return search_below(sections_of(pieces), height_bytes, limit);
  return {max_live_bytes(pieces) > height_bytes ? SearchEnd::Kind::impossible : SearchEnd::Kind::limit, {}, 0};
}

}  // namespace sluice::planning
