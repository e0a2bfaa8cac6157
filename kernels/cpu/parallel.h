// Work split over the calling thread's OpenMP team in pieces that do not depend on the size of the team.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#ifdef __SANITIZE_THREAD__
#include "kernels/cpu/gemm_team.h"
#endif

namespace sluice::kernels {

/// Cores that this process may run on, asked once: OpenMP asks the kernel each time. Workspaces are sized for them,
/// since a plan may be made on another thread than the one that computes.
inline int machine_cores() {
  static const int cores = std::max(omp_get_num_procs(), 1);
  return cores;
}

/// Rows that are summed together in reductions over rows.
constexpr std::int64_t block_rows = 64;
/// Elements below which starting a team costs more than it gains.
constexpr std::int64_t parallel_grain = 1 << 14;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t x, std::int64_t step) { return divide_up(x, step) * step; }
/// Size of equal pieces of at most `largest`, in multiples of `step`.
constexpr std::int64_t even_piece(std::int64_t total, std::int64_t largest, std::int64_t step) {
  return round_up(divide_up(total, divide_up(total, largest)), step);
}

/// f(begin, end) for every piece of `piece` elements of [0, n).
template <class F>
void for_pieces(std::int64_t n, std::int64_t piece, const F& f) {
  const std::int64_t pieces = divide_up(n, piece);
#ifdef __SANITIZE_THREAD__
  with_team(pieces > 1 ? omp_get_max_threads() : 1, [&](const Team& team) {
    team.share(pieces, [&](std::int64_t p) { f(p * piece, std::min(n, (p + 1) * piece)); });
  });
#else
#pragma omp parallel for schedule(static) if (pieces > 1)
  for (std::int64_t p = 0; p < pieces; ++p) f(p * piece, std::min(n, (p + 1) * piece));
#endif
}

/// f(row begin, row end) over rows of `width` elements, in pieces of about parallel_grain elements.
template <class F>
void for_rows(std::int64_t rows, std::int64_t width, const F& f) {
  for_pieces(rows, std::max<std::int64_t>(1, parallel_grain / std::max<std::int64_t>(1, width)), f);
}

/// sum[c] += blocks[i * stride + c] for i = 0 .. count - 1 in this order, width columns.
void add_blocks(const float* blocks, std::int64_t count, std::int64_t stride, std::int64_t width, float* sum);

}  // namespace sluice::kernels
