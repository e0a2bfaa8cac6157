// Which slices of a trace Perfetto's importer drops: those that overlap an open slice of their track and end after it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

/// Importers make nanoseconds of the microseconds that a trace has by taking the digits, or by cutting a product off.
enum class Digits : std::uint8_t { taken, cut_off };

inline std::int64_t nanoseconds(const nlohmann::json& microseconds, Digits digits) {
  const double ns = microseconds.get<double>() * 1000.0;
  return digits == Digits::taken ? std::llround(ns) : static_cast<std::int64_t>(ns);
}

/// Names of the slices that are dropped, as SliceTracker::MaybeCloseStack does it.
inline std::vector<std::string> dropped_slices(const nlohmann::json& trace, Digits digits) {
  struct Slice {
    std::int64_t start, duration;
    std::string name;
  };
  std::map<std::pair<int, int>, std::vector<Slice>> tracks;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == "X")
      tracks[{e.at("pid"), e.at("tid")}].push_back(
          {nanoseconds(e.at("ts"), digits), nanoseconds(e.at("dur"), digits), e.at("name")});
  std::vector<std::string> dropped;
  for (auto& [track, slices] : tracks) {
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) { return a.start < b.start; });
    std::vector<Slice> open;
    for (const Slice& s : slices) {
      const auto end = [](const Slice& of) { return of.start + of.duration; };
      while (!open.empty() && (end(open.back()) < s.start ||
                               (end(open.back()) == s.start && !(open.back().duration == 0 && s.duration == 0))))
        open.pop_back();
      if (!open.empty() && s.start < end(open.back()) && end(s) > end(open.back()))
        dropped.push_back(s.name);
      else
        open.push_back(s);
    }
  }
  return dropped;
}

}  // namespace sluice::test
