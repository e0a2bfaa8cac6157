// What a model is given of one sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "io/tokens/token_file.h"

namespace sluice {

/// One row of a micro-batch: planes of src/model/sublayer.h, each [sequence].
struct BatchRow {
  std::span<std::int32_t> inputs, targets;
  std::span<std::int32_t> positions;  ///< empty: documents are not kept apart

  std::uint64_t targets_that_count() const {
    return static_cast<std::uint64_t>(std::ranges::count_if(targets, [](std::int32_t t) { return t >= 0; }));
  }
  /// Row `row` of the planes of a micro-batch of `rows`.
  static BatchRow of(std::span<std::int32_t> planes, std::uint64_t row, std::uint64_t rows, std::uint64_t sequence) {
    const auto plane = [&](std::uint64_t p) { return planes.subspan((p * rows + row) * sequence, sequence); };
    return {plane(0), plane(1), planes.size() < 3 * rows * sequence ? std::span<std::int32_t>() : plane(2)};
  }
};

/// The tokens from `start` on, and -1 for those that the file's mask leaves out of the loss. bad_request for tokens
/// that are not in the vocabulary, or damaged.
Status read_targets(const TokenFile& tokens, std::uint64_t start, std::span<std::int32_t> targets);

}  // namespace sluice
