#include "offload/plan/pack_rising.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <numeric>

#include "sluice/status.h"

namespace sluice::planning {

RisingSearch::RisingSearch(const Sections& sections, const Neighbours& neighbours, std::uint64_t capacity)
    : sections_(sections), capacity_(capacity), neighbours_(neighbours) {
  const std::size_t n = sections.spans.size();
  SLUICE_CHECK(n <= most_rising_pieces, "%zu pieces", n);
  low_.resize(n), offsets_.resize(n), placed_.resize(n);
  crossing_.resize(sections.count), next_.resize(std::size_t{sections.count} + 1);
}

SearchEnd RisingSearch::pass(const Order& order, const SearchLimit& limit) {
  order_ = &order;
  limit_ = &limit;
  nodes_ = work_ = 0;
  stopped_ = false;
  std::ranges::transform(sections_.spans, low_.begin(), &SectionSpan::floor);
  std::fill(placed_.begin(), placed_.end(), false);
  std::fill(crossing_.begin(), crossing_.end(), 0u);
  left_ = sections_.units;
  for (const SectionSpan& p : sections_.spans)
    for (std::uint32_t s = p.first; s < p.last; ++s) ++crossing_[s];
  std::vector<Left> all;
  for (std::uint32_t i = 0; i < sections_.spans.size(); ++i) all.push_back({0, i, i});
  bool found = true;
  for (const Part& part : parts_of({0, sections_.count - 1, {}}, all)) found = found && place_part(part);
  SearchEnd end{found      ? SearchEnd::Kind::found
                : stopped_ ? SearchEnd::Kind::limit
                           : SearchEnd::Kind::impossible,
                {},
                work_};
  if (found)
    for (const std::uint64_t offset : offsets_) end.offsets.push_back(offset * sections_.unit_bytes);
  return end;
}

/// Places all of a part and notes where; everything else is as it was then.
bool RisingSearch::place_part(const Part& part) {
  std::vector<std::pair<std::array<std::uint64_t, 3>, std::uint32_t>> keys;
  for (const std::uint32_t i : part.pieces) keys.emplace_back(key_of(sections_.spans[i], *order_, left_), i);
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Left> left;
  for (std::uint32_t rank = 0; rank < keys.size(); ++rank)
    left.push_back({low_[keys[rank].second], rank, keys[rank].second});
  std::sort(left.begin(), left.end());
  work_ += 16 * left.size();
  return holds(part, left, 0) && place_left(part, left, {});
}

/// `left` by rising offset; what lies lower than `after` had its turn.
bool RisingSearch::place_left(const Part& part, const std::vector<Left>& left, const Left& after) {
  if (left.empty()) return true;
  if (work_ >= limit_->work || ((++nodes_ & 63) == 0 && limit_->is_over && limit_->is_over())) stopped_ = true;
  if (stopped_) return false;
  std::uint64_t least_end = std::numeric_limits<std::uint64_t>::max();
  for (const Left& each : left) least_end = std::min(least_end, each.low + sections_.spans[each.piece].units);
  for (const Left& each : left) {
    if (each < after) continue;
    if (each.low >= least_end) break;
    const std::size_t past = past_.size();
    const bool meets = put(each.piece);
    const bool done = place_behind(part, left, each);
    take_back(each.piece, past);
    if (done) offsets_[each.piece] = each.low;
    // What meets nothing that is left is in nobody's way.
    if (done || stopped_ || !meets) return done;
  }
  return false;
}

/// What is left of a part behind a piece that was just put.
bool RisingSearch::place_behind(const Part& part, const std::vector<Left>& left, const Left& put) {
  // All that it lifted lie as low as each other now; the others are in turn as they were.
  std::vector<Left> same, lifted, behind;
  same.reserve(left.size());
  for (const Left& each : left)
    if (each.piece != put.piece)
      (low_[each.piece] == each.low ? same : lifted).push_back({low_[each.piece], each.rank, each.piece});
  std::sort(lifted.begin(), lifted.end());
  behind.reserve(left.size());
  std::merge(same.begin(), same.end(), lifted.begin(), lifted.end(), std::back_inserter(behind));
  work_ += 3 * left.size() + (part.last - part.first) / 2;
  if (!holds(part, behind, put.low)) return false;
  const SectionSpan& p = sections_.spans[put.piece];
  const bool falls_apart = std::any_of(crossing_.begin() + p.first, crossing_.begin() + p.last,
                                       [](std::uint32_t crossing) { return crossing == 0; });
  if (!falls_apart) return place_left(part, behind, put);
  const std::vector<Part> parts = parts_of(part, behind);
  return std::all_of(parts.begin(), parts.end(), [&](const Part& each) { return place_part(each); });
}

/// Whether each section has room for what is left in it, above the offset that was reached and the lowest of it.
bool RisingSearch::holds(const Part& part, const std::vector<Left>& left, std::uint64_t reached) {
  std::iota(next_.begin() + part.first, next_.begin() + part.last + 2, part.first);
  for (const Left& each : left) {
    const SectionSpan& p = sections_.spans[each.piece];
    if (each.low + p.units > capacity_) return false;
    const std::uint64_t floor = std::max(reached, each.low);
    for (std::uint32_t s = uncovered_from(p.first); s <= p.last; s = uncovered_from(s)) {
      if (floor + left_[s] > capacity_) return false;
      next_[s] = s + 1;
    }
  }
  return true;
}

std::uint32_t RisingSearch::uncovered_from(std::uint32_t section) {
  while (next_[section] != section) section = next_[section] = next_[next_[section]];
  return section;
}

/// Whether it meets anything that is left.
bool RisingSearch::put(std::uint32_t piece) {
  const SectionSpan& p = sections_.spans[piece];
  const std::uint64_t end = low_[piece] + p.units;
  placed_[piece] = true;
  for (std::uint32_t s = p.first; s <= p.last; ++s) left_[s] -= p.units;
  for (std::uint32_t s = p.first; s < p.last; ++s) --crossing_[s];
  bool meets = false;
  for (const std::uint32_t k : neighbours_[piece]) {
    if (placed_[k]) continue;
    meets = true;
    if (low_[k] >= end) continue;
    past_.emplace_back(k, low_[k]);
    low_[k] = end;
  }
  return meets;
}

void RisingSearch::take_back(std::uint32_t piece, std::size_t past) {
  for (; past_.size() > past; past_.pop_back()) low_[past_.back().first] = past_.back().second;
  const SectionSpan& p = sections_.spans[piece];
  for (std::uint32_t s = p.first; s <= p.last; ++s) left_[s] += p.units;
  for (std::uint32_t s = p.first; s < p.last; ++s) ++crossing_[s];
  placed_[piece] = false;
}

/// Cut where nothing that is left lives on.
std::vector<RisingSearch::Part> RisingSearch::parts_of(const Part& part, const std::vector<Left>& left) const {
  std::vector<Part> parts;
  std::vector<std::uint32_t> part_of(part.last - part.first + 1);
  std::uint32_t first = part.first;
  for (std::uint32_t s = part.first; s <= part.last; ++s) {
    part_of[s - part.first] = static_cast<std::uint32_t>(parts.size());
    if (s < part.last && crossing_[s] > 0) continue;
    parts.push_back({first, s, {}});
    first = s + 1;
  }
  for (const Left& each : left)
    parts[part_of[sections_.spans[each.piece].first - part.first]].pieces.push_back(each.piece);
  std::erase_if(parts, [](const Part& each) { return each.pieces.empty(); });
  for (Part& each : parts) std::sort(each.pieces.begin(), each.pieces.end());
  return parts;
}

}  // namespace sluice::planning
