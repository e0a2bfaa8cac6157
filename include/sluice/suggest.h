// What somebody may have meant by a name that is not known.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// The fewest insertions, deletions, replacements and swaps of neighbours that make `b` of `a` (optimal string
/// alignment), capitals taken for small letters.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  // Rows of the table for the first i - 2, i - 1 and i characters of `a`.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

/// Those of `known` that are nearest to `given`, at most three, in their order. None where even they differ from it in
/// more than a third of the longer name, or in more than one character of a name of up to five.
template <class Names>
std::vector<std::string> nearest(std::string_view given, const Names& known) {
  constexpr std::size_t names_max = 3, long_text = 64;
  std::vector<std::string> found;
  if (given.size() > long_text) return found;
  std::size_t least = long_text;
  for (const std::string_view name : known) {
    const std::size_t longer = std::max(given.size(), name.size()), distance = edit_distance(given, name);
    if (distance > std::max<std::size_t>(1, longer / 3) || distance >= longer || distance > least) continue;
    if (distance < least) found.clear();
    least = distance;
    if (found.size() < names_max && std::find(found.begin(), found.end(), name) == found.end())
      found.emplace_back(name);
  }
  return found;
}

/// "; did you mean a, b or c?"; nothing of no names.
inline std::string did_you_mean(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text.empty() ? text : "; did you mean " + text + "?";
}

/// The same of the names that are nearest to `given`.
template <class Names>
std::string did_you_mean(std::string_view given, const Names& known) {
  return did_you_mean(nearest(given, known));
}

}  // namespace sluice
