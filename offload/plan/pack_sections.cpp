#include "offload/plan/pack_sections.h"

#include <algorithm>
#include <numeric>

#include "sluice/status.h"

namespace sluice::planning {
namespace {

/// Starts of life that an end follows before another start does.
std::vector<std::uint32_t> fullest_moments(std::span<const Piece> pieces) {
  std::vector<std::uint32_t> starts, lasts, moments;
  for (const Piece& p : pieces) {
    starts.push_back(p.first);
    lasts.push_back(p.last);
  }
  std::sort(starts.begin(), starts.end());
  std::sort(lasts.begin(), lasts.end());
  for (std::size_t started = 0, ended = 0; ended < lasts.size(); ++ended) {
    const std::size_t before = started;
    while (started < starts.size() && starts[started] <= lasts[ended]) ++started;
    if (started > before) moments.push_back(starts[started - 1]);
  }
  return moments;
}

}  // namespace

Sections sections_of(std::span<const Piece> pieces) {
  const std::vector<std::uint32_t> moments = fullest_moments(pieces);
  Sections s;
  s.count = static_cast<std::uint32_t>(moments.size());
  s.units.resize(s.count);
  s.unit_bytes = 0;
  for (const Piece& p : pieces) {
    SLUICE_CHECK(p.bytes > 0, "a piece from %u to %u has no bytes", p.first, p.last);
    s.unit_bytes = std::gcd(s.unit_bytes, std::gcd(p.bytes, p.floor));
  }
  s.unit_bytes = std::max<std::uint64_t>(s.unit_bytes, 1);
  for (const Piece& p : pieces) {
    const auto from = std::lower_bound(moments.begin(), moments.end(), p.first),
               behind = std::upper_bound(from, moments.end(), p.last);
    s.spans.push_back({static_cast<std::uint32_t>(from - moments.begin()),
                       static_cast<std::uint32_t>(behind - moments.begin() - 1), life_of(p), p.bytes / s.unit_bytes,
                       p.floor / s.unit_bytes});
    for (std::uint32_t at = s.spans.back().first; at <= s.spans.back().last; ++at) s.units[at] += s.spans.back().units;
  }
  return s;
}

Neighbours neighbours_of(const Sections& sections) {
  const std::vector<SectionSpan>& spans = sections.spans;
  std::vector<std::uint32_t> by_start(spans.size());
  std::iota(by_start.begin(), by_start.end(), 0u);
  std::stable_sort(by_start.begin(), by_start.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return spans[a].first < spans[b].first; });
  Neighbours neighbours(spans.size());
  for (std::size_t i = 0; i < by_start.size(); ++i)
    for (std::size_t j = i + 1; j < by_start.size() && spans[by_start[j]].first <= spans[by_start[i]].last; ++j) {
      neighbours[by_start[i]].push_back(by_start[j]);
      neighbours[by_start[j]].push_back(by_start[i]);
    }
  return neighbours;
}

}  // namespace sluice::planning
