// The tokens of a micro-batch as a rank has them: its slice of every sequence, or the micro-batch's, and words as the
// rank counts them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "src/model/sublayer.h"
#include "src/schedule/schedule.h"
#include "src/train/data/batches.h"
#include "src/train/data/own_words.h"

namespace sluice {

/// `planes`: as src/model/sublayer.h has them. read(row, whole) fills a row of whole sequences.
template <class Read>
Status read_planes(const Workload& work, RankId rank, int micro_batch, std::span<std::int32_t> planes,
                   const Read& read) {
  const auto rows = static_cast<std::uint64_t>(work.shape.batch),
             sequence = static_cast<std::uint64_t>(work.shape.sequence);
  const auto tokens = static_cast<std::size_t>(work.shape.tokens());
  if (work.shape.whole() == work.shape.sequence) {
    for (std::uint64_t row = 0; row < rows; ++row) SLUICE_TRY(read(row, BatchRow::of(planes, row, rows, sequence)));
  } else {
    const auto whole = static_cast<std::uint64_t>(work.shape.whole());
    const bool has_positions = work.has_positions();
    const std::span<std::int32_t> own = planes.first((has_positions ? 3 : 2) * tokens);
    std::vector<std::int32_t> buffer((work.documents ? 3 : 2) * whole), places;
    const BatchRow all = BatchRow::of(buffer, 0, 1, whole);
    if (has_positions && !work.documents) {
      places.resize(whole);
      std::iota(places.begin(), places.end(), 0);
    }
    const std::span<const std::int32_t> positions = work.documents ? all.positions : places;
    for (std::uint64_t row = 0; row < rows; ++row) {
      SLUICE_TRY(read(row, all));
      const BatchRow slice = BatchRow::of(own, row, rows, sequence);
      const auto take = [&](std::span<const std::int32_t> from, std::span<std::int32_t> to) {
        for (const SliceRun& run : slice_runs(work.shape, work.slice_of(rank, micro_batch)))
          std::copy_n(from.begin() + run.from, run.count, to.begin() + run.at);
      };
      take(all.inputs, slice.inputs);
      take(all.targets, slice.targets);
      if (has_positions) take(positions, slice.positions);
      if (!TokenPlanes::has_whole(work.shape, work.documents)) continue;
      std::ranges::copy(all.positions, planes.subspan(own.size() + row * whole, whole).begin());
    }
  }
  if (work.split != nullptr) keep_own_words(*work.split, work.shard_map().part_of_rank(rank), tokens, planes);
  return success();
}

}  // namespace sluice
