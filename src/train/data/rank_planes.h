// The tokens of a micro-batch as a rank has them: its slice of every sequence, and words as it counts them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/schedule/schedule.h"
#include "src/train/data/batches.h"
#include "src/train/data/own_words.h"

namespace sluice {

/// `planes`: as src/model/sublayer.h has them. read(row, whole) fills a row of whole sequences.
template <class Read>
Status read_planes(const Workload& work, RankId rank, std::span<std::int32_t> planes, const Read& read) {
  const auto rows = static_cast<std::uint64_t>(work.shape.batch),
             sequence = static_cast<std::uint64_t>(work.shape.sequence);
  const auto tokens = static_cast<std::size_t>(work.shape.tokens());
  if (work.shape.context == 1) {
    for (std::uint64_t row = 0; row < rows; ++row) SLUICE_TRY(read(row, BatchRow::of(planes, row, rows, sequence)));
  } else {
    const auto whole = static_cast<std::uint64_t>(work.shape.whole());
    const std::uint64_t first = work.slice_of(rank) * sequence;
    const std::span<std::int32_t> own = planes.first((work.documents ? 3 : 2) * tokens);
    std::vector<std::int32_t> buffer((work.documents ? 3 : 2) * whole);
    const BatchRow all = BatchRow::of(buffer, 0, 1, whole);
    for (std::uint64_t row = 0; row < rows; ++row) {
      SLUICE_TRY(read(row, all));
      const BatchRow slice = BatchRow::of(own, row, rows, sequence);
      std::ranges::copy(all.inputs.subspan(first, sequence), slice.inputs.begin());
      std::ranges::copy(all.targets.subspan(first, sequence), slice.targets.begin());
      if (!work.documents) continue;
      std::ranges::copy(all.positions.subspan(first, sequence), slice.positions.begin());
      std::ranges::copy(all.positions, planes.subspan(own.size() + row * whole, whole).begin());
    }
  }
  if (work.split != nullptr) keep_own_words(*work.split, work.shard_map().part_of_rank(rank), tokens, planes);
  return success();
}

}  // namespace sluice
