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
    s.unit_bytes = std::gcd(s.unit_bytes, p.bytes);
  }
  s.unit_bytes = std::max<std::uint64_t>(s.unit_bytes, 1);
  for (const Piece& p : pieces) {
    const auto from = std::lower_bound(moments.begin(), moments.end(), p.first),
               behind = std::upper_bound(from, moments.end(), p.last);
    s.spans.push_back({static_cast<std::uint32_t>(from - moments.begin()),
                       static_cast<std::uint32_t>(behind - moments.begin() - 1), life_of(p), p.bytes / s.unit_bytes});
    for (std::uint32_t at = s.spans.back().first; at <= s.spans.back().last; ++at) s.units[at] += s.spans.back().units;
  }
  return s;
}

}  // namespace sluice::planning
