#include "kernels/cpu/gemm_blocked.h"

#include <omp.h>

#include "kernels/cpu/gemm_team.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_blocked.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

#include "kernels/cpu/gemm_panel-inl.h"

#ifndef SLUICE_GEMM_BLOCKING_
#define SLUICE_GEMM_BLOCKING_
namespace sluice::kernels {
namespace {

/// Largest block of the result that one pass over a block of k works on, and largest depth of that block. Depth: a
/// panel of the right operand stays in the L1 cache. Rows and columns: every element is packed once per this many rows
/// or columns of the other operand, and both packed blocks stay in the shared cache.
constexpr std::int64_t max_rows = 1536, max_columns = 1056, max_depth = 256;
/// A task of one thread: a block of packed rows that stays in the L2 cache, and a few panels.
constexpr std::int64_t task_rows = 128, task_panels = 8;
/// Below this many products, waking the team costs more than it saves.
constexpr std::int64_t parallel_products = 1 << 20;

/// The widest register tile of any target (AVX-512): 8 rows, 3 vectors of 16. Blocks are multiples of it on every
/// target, so that the workspace does not depend on the target.
constexpr std::int64_t row_step = 8, column_step = 48, depth_step = 8;

struct Blocking {
  std::int64_t rows, columns, depth;
  Blocking(std::int64_t m, std::int64_t n, std::int64_t k)
      : rows(even_piece(m, max_rows, row_step)),
        columns(even_piece(n, max_columns, column_step)),
        depth(even_piece(k, max_depth, depth_step)) {}
  /// Blocks at least as large as those of any problem up to this size.
  static Blocking largest(std::int64_t m, std::int64_t n, std::int64_t k) {
    return {std::min(round_up(m, row_step), max_rows), std::min(round_up(n, column_step), max_columns),
            std::min(round_up(k, depth_step), max_depth)};
  }
  /// Panels of at least 4 rows with 16 floats between them.
  std::int64_t packed_a_floats() const { return round_up(rows * (depth + 4), 16); }
  std::int64_t packed_b_floats() const { return round_up(columns * depth, 16); }
};

struct Problem {
  ConstMatrix a, b;
  Matrix c;
  std::int64_t m, n, k;
  bool accumulate;
  float *packed_a, *packed_b, *partial;
};

}  // namespace
}  // namespace sluice::kernels
#endif  // SLUICE_GEMM_BLOCKING_

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// One block of the result over one block of k.
struct Block {
  std::int64_t row, column, depth0, rows, columns, depth;
  bool first, last;  ///< of the blocks of k
};

/// Pack both operands' parts of a block; called by every thread of the team.
template <class In>
void pack_block(const Team& team, const Problem& g, const Block& s) {
  const PackSource<In> a{static_cast<const In*>(g.a.data), g.a.ld, !g.a.transposed, g.m};
  const PackSource<In> b{static_cast<const In*>(g.b.data), g.b.ld, g.b.transposed, g.n};
  constexpr std::int64_t strip = 64;  // rows packed together: whole cache lines of a transposed operand
  const std::int64_t strips = (s.rows + strip - 1) / strip;
  const ColumnPanels panels(s.columns);
  team.share(strips + panels.count(), [&](std::int64_t i) {
    if (i >= strips) return pack_column_panel(b, panels, i - strips, s.column, s.depth0, s.depth, g.packed_b);
    const std::int64_t row = i * strip;
    pack_row_panels(a, s.row + row, std::min(strip, s.rows - row), s.depth0, s.depth,
                    g.packed_a + row / tile_rows * row_panel_floats(s.depth));
  });
}

template <class Out>
void multiply_task(const Problem& g, const Block& s, std::int64_t row0, std::int64_t row1, std::int64_t panel0,
                   std::int64_t panel1, std::int64_t partial_ld) {
  const RightOperand right{g.packed_b, s.columns, s.depth};
  for (std::int64_t i = panel0; i < panel1; ++i)
    for (std::int64_t r = row0; r < row1; r += tile_rows) {
      const LeftOperand left{g.packed_a + r / tile_rows * row_panel_floats(s.depth), 1, tile_rows};
      const std::int64_t rows = std::min(tile_rows, s.rows - r);
      Out* out = static_cast<Out*>(g.c.data) + (s.row + r) * g.c.ld + s.column;
      if constexpr (std::is_same_v<Out, float>) {
        const bool add = g.accumulate || !s.first;
        multiply_panel<float>(left, right, i, 0, s.depth, {add ? out : nullptr, g.c.ld, out, g.c.ld}, rows);
      } else {
        float* partial = g.partial + r * partial_ld;
        const float* sum = s.first ? nullptr : partial;
        if (s.last)
          multiply_panel<bf16>(left, right, i, 0, s.depth, {sum, partial_ld, out, g.c.ld}, rows);
        else
          multiply_panel<float>(left, right, i, 0, s.depth, {sum, partial_ld, partial, partial_ld}, rows);
      }
    }
}

/// Called by every thread of the team; afterwards the packed operands may be replaced.
template <class Out>
void multiply_block(const Team& team, const Problem& g, const Block& s, std::int64_t partial_ld) {
  const ColumnPanels panels(s.columns);
  const std::int64_t row_tasks = (s.rows + task_rows - 1) / task_rows;
  const std::int64_t column_tasks = (panels.count() + task_panels - 1) / task_panels;
  team.share(row_tasks * column_tasks, [&](std::int64_t t) {
    const std::int64_t row = t % row_tasks * task_rows, panel = t / row_tasks * task_panels;
    multiply_task<Out>(g, s, row, std::min(s.rows, row + task_rows), panel,
                       std::min(panels.count(), panel + task_panels), partial_ld);
  });
}

template <class In, class Out>
void run_blocks(const Problem& g) {
  const Blocking size(g.m, g.n, g.k);
  const int threads = g.m * g.n * g.k < parallel_products ? 1 : omp_get_max_threads();
  with_team(threads, [&](const Team& team) {
    for (std::int64_t column = 0; column < g.n; column += size.columns)
      for (std::int64_t row = 0; row < g.m; row += size.rows)
        for (std::int64_t depth = 0; depth < g.k; depth += size.depth) {
          const Block s{row,
                        column,
                        depth,
                        std::min(size.rows, g.m - row),
                        std::min(size.columns, g.n - column),
                        std::min(size.depth, g.k - depth),
                        depth == 0,
                        depth + size.depth >= g.k};
          pack_block<In>(team, g, s);
          multiply_block<Out>(team, g, s, size.columns);
        }
  });
}

void run(const Problem& g) {
  const bool in_f32 = g.a.dtype == Dtype::f32, out_f32 = g.c.dtype == Dtype::f32;
  if (in_f32 && out_f32) run_blocks<float, float>(g);
  if (in_f32 && !out_f32) run_blocks<float, bf16>(g);
  if (!in_f32 && out_f32) run_blocks<bf16, float>(g);
  if (!in_f32 && !out_f32) run_blocks<bf16, bf16>(g);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(run);

std::uint64_t blocked_gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result) {
  const Blocking size = Blocking::largest(m, n, k);
  const std::int64_t partial = result == Dtype::f32 ? 0 : size.rows * size.columns;
  return static_cast<std::uint64_t>(size.packed_a_floats() + size.packed_b_floats() + partial) * sizeof(float);
}

void blocked_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
                  std::int64_t k, bool accumulate, std::span<std::byte> workspace) {
  const Blocking size(m, n, k);
  float* packed_a = reinterpret_cast<float*>(workspace.data());
  float* packed_b = packed_a + size.packed_a_floats();
  float* partial = packed_b + size.packed_b_floats();
  HWY_DYNAMIC_DISPATCH(run)({a, b, c, m, n, k, accumulate, packed_a, packed_b, partial});
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
