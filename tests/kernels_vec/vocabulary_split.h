// Logits of a vocabulary whose columns are split over members, for the cross-entropies of every device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/vocabulary_part.h"

namespace sluice::test {

/// Columns of each of one to four members: uneven, and none of some.
inline std::vector<std::vector<std::int64_t>> splits_of(std::int64_t vocabulary) {
  const std::int64_t half = vocabulary / 2, seventh = vocabulary / 7, rest = vocabulary - half - seventh;
  return {{vocabulary},          {half, vocabulary - half}, {vocabulary, 0},          {half, 0, vocabulary - half},
          {seventh, half, rest}, {0, seventh, rest, half},  {seventh, rest, half, 0}, {rest, half, 0, seventh}};
}

/// What one member has of `tokens` rows: its columns in rows of their own, and the targets as it sees them.
struct MemberLogits {
  static constexpr float padding = 768;
  std::int64_t first = 0, columns = 0, ld = 0;
  std::vector<float> logits;
  std::vector<std::int32_t> targets;

  MemberLogits(const std::vector<float>& whole, std::int64_t whole_ld, const std::vector<std::int32_t>& whole_targets,
               std::int64_t first_column, std::int64_t count, std::int64_t gap)
      : first(first_column), columns(count), ld(count > 0 ? count + gap : 0) {
    const auto tokens = static_cast<std::int64_t>(whole_targets.size());
    logits.assign(static_cast<std::size_t>(tokens * ld), padding);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int32_t target = whole_targets[static_cast<std::size_t>(t)];
      const bool own = target >= first && target < first + columns;
      targets.push_back(own           ? target - static_cast<std::int32_t>(first)
                        : target >= 0 ? kernels::target_elsewhere
                                      : target);
      std::copy_n(whole.begin() + t * whole_ld + first, columns, logits.begin() + t * ld);
    }
  }

  /// Puts its columns back into rows of the whole vocabulary; fails the test where the padding was touched.
  void put_back(std::vector<float>& whole, std::int64_t whole_ld) const {
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(targets.size()); ++t) {
      const auto row = logits.begin() + t * ld;
      std::copy_n(row, columns, whole.begin() + t * whole_ld + first);
      for (std::int64_t i = columns; i < ld; ++i) ASSERT_EQ(row[i], padding) << "touched the padding";
    }
  }
};

inline std::vector<MemberLogits> split_logits(const std::vector<float>& whole, std::int64_t ld,
                                              const std::vector<std::int32_t>& targets,
                                              const std::vector<std::int64_t>& split, std::int64_t gap) {
  std::vector<MemberLogits> members;
  std::int64_t first = 0;
  for (const std::int64_t columns : split) {
    members.emplace_back(whole, ld, targets, first, columns, gap);
    first += columns;
  }
  return members;
}

}  // namespace sluice::test
