#include "kernels/cpu/gemm_amx.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_team.h"
#include "kernels/cpu/parallel.h"

HWY_PUSH_ATTRIBUTES(SLUICE_AMX)
namespace sluice::kernels {
namespace {

using amx::step_depth, amx::step_pairs, bf16_units::Pair, bf16_units::panel_columns;

/// What a thread works on: the rows of a task over a block of depth stay in its L2 cache.
constexpr std::int64_t task_rows = 256, max_depth = 2048;
/// Depth of a panel that stays in the L1 cache while a task's rows pass by it.
constexpr std::int64_t panel_depth = 512, panel_steps = panel_depth / step_depth;
/// Columns packed at once: a task's rows are read once for so many. Rows: of fp32 sums kept where the result is bf16
/// and deeper than one block.
constexpr std::int64_t max_columns = 2048, max_partial_rows = 2048;
/// Below this many products, waking the team costs more than it saves.
constexpr std::int64_t parallel_products = 1 << 22;

/// Elements and floats of the workspace; no smaller for a larger problem.
struct Layout {
  std::int64_t packed_b, partial, per_thread;
  Layout(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result) {
    const std::int64_t depth = std::min(round_up(k, step_depth), max_depth);
    const std::int64_t columns = std::min(round_up(n, panel_columns), max_columns);
    const std::int64_t rows = std::min(round_up(m, amx::block_rows), task_rows);
    packed_b = depth * columns / 2;
    partial =
        result == Dtype::bf16 && k > max_depth ? std::min(round_up(m, amx::block_rows), max_partial_rows) * columns : 0;
    per_thread = rows * panel_columns + rows * depth / 2;
  }
  std::uint64_t bytes(std::int64_t threads) const {
    return static_cast<std::uint64_t>(packed_b + partial + threads * per_thread) * sizeof(float);
  }
};

struct Problem {
  ConstMatrix a, b;
  Matrix c;
  std::int64_t m, n, k;
  bool accumulate;
  Pair* packed_b;
  float *partial, *thread_parts;
  std::int64_t per_thread;

  const bf16* a_at(std::int64_t row, std::int64_t depth) const {
    return static_cast<const bf16*>(a.data) + (a.transposed ? depth * a.ld + row : row * a.ld + depth);
  }
  const bf16* b_at(std::int64_t depth, std::int64_t column) const {
    return static_cast<const bf16*>(b.data) + (b.transposed ? column * b.ld + depth : depth * b.ld + column);
  }
};

/// One block of the result over one block of depth.
struct Block {
  std::int64_t row0, column0, depth0, rows, columns, depth;
  bool first, last;  ///< of the blocks of depth
  std::int64_t steps() const { return (depth + step_depth - 1) / step_depth; }
  std::int64_t panel_pairs() const { return steps() * step_pairs * panel_columns; }
};

void pack_b_panel(const Problem& g, const Block& s, std::int64_t panel) {
  const std::int64_t column = panel * panel_columns, columns = std::min(panel_columns, s.columns - column);
  Pair* out = g.packed_b + panel * s.panel_pairs();
  const bf16* data = g.b_at(s.depth0, s.column0 + column);
  if (g.b.transposed)
    bf16_units::pack_across({data, g.b.ld, columns, s.depth}, s.steps() * step_pairs, out);
  else
    bf16_units::pack_down({data, g.b.ld, s.depth, columns}, s.steps() * step_pairs, out);
}

/// Rows of the left operand over the block's depth, packed in blocks of 32 rows and of a step of depth. Reading them as
/// they lie would save this copy, but rows that lie a power of two apart share few sets of the cache.
void pack_a_rows(const Problem& g, const Block& s, std::int64_t row, std::int64_t rows, Pair* out) {
  const bf16* data = g.a_at(row, s.depth0);
  if (!g.a.transposed) return bf16_units::pack_left({data, g.a.ld, rows, s.depth}, out);
  bf16_units::pack_left_transposed({data, g.a.ld, s.depth, rows}, out);
}

/// The way of a finished block's sums, 32 rows or fewer of a panel, to the result or to the sums that wait.
template <class Out>
struct Finish {
  std::int64_t rows = 0;  ///< left to do
  const float* sums = nullptr;
  Out* out = nullptr;
  float* partial = nullptr;
  std::int64_t ld = 0, partial_ld = 0;
  __mmask32 mask = 0;
  bool add = false;   ///< to what is there: the result, or the sums that wait
  bool last = false;  ///< of the blocks of depth

  HWY_INLINE void row() {
    __m512 x = _mm512_load_ps(sums), y = _mm512_load_ps(sums + 16);
    const auto low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
    if constexpr (std::is_same_v<Out, float>) {
      if (add) {
        x = _mm512_add_ps(_mm512_maskz_loadu_ps(low, out), x);
        y = _mm512_add_ps(_mm512_maskz_loadu_ps(high, out + 16), y);
      }
      _mm512_mask_storeu_ps(out, low, x);
      _mm512_mask_storeu_ps(out + 16, high, y);
    } else {
      if (add) {
        x = _mm512_add_ps(_mm512_load_ps(partial), x);
        y = _mm512_add_ps(_mm512_load_ps(partial + 16), y);
      }
      if (last) {
        _mm512_mask_storeu_epi16(out, mask, (__m512i)_mm512_cvtne2ps_pbh(y, x));
      } else {
        _mm512_store_ps(partial, x);
        _mm512_store_ps(partial + 16, y);
      }
      partial += partial_ld;
    }
    sums += panel_columns;
    out += ld;
    --rows;
  }
};

/// Beside the multiplication of one block: finishing the one before, and bringing near its share of the next part of
/// the panel and, where it will be finished itself, the rows that it goes to: of the result, of sums that wait.
template <class Out>
struct Errands {
  Finish<Out>& finish;
  const char *data, *rows, *partial;  ///< rows, partial: null where there are none
  std::int64_t row_bytes, partial_bytes;

  HWY_INLINE void step() {
    constexpr std::ptrdiff_t lines = 4, line_bytes = 64;
    for (std::ptrdiff_t line = 0; line < lines; ++line) _mm_prefetch(data + line_bytes * line, _MM_HINT_T1);
    data += lines * line_bytes;
    if (rows != nullptr)
      for (int row = 0; row < 2; ++row, rows += row_bytes) {
        _mm_prefetch(rows, _MM_HINT_T1);
        if constexpr (sizeof(Out) == 4) _mm_prefetch(rows + 64, _MM_HINT_T1);
      }
    if constexpr (std::is_same_v<Out, bf16>)
      if (partial != nullptr)
        for (int row = 0; row < 2; ++row, partial += partial_bytes) {
          _mm_prefetch(partial, _MM_HINT_T1);
          _mm_prefetch(partial + 64, _MM_HINT_T1);
        }
    if (finish.rows > 0) finish.row();
    if (finish.rows > 0) finish.row();
  }
  HWY_INLINE void rest() {
    while (finish.rows > 0) finish.row();
  }
};

template <class Out>
void multiply_rows(const Problem& g, const Block& s, std::int64_t row, std::int64_t rows, float* scratch) {
  float* sums = scratch;
  auto* packed = reinterpret_cast<Pair*>(scratch + round_up(rows, amx::block_rows) * panel_columns);
  pack_a_rows(g, s, row, rows, packed);
  const std::int64_t steps = s.steps(), block_pairs = steps * amx::block_rows * step_pairs;
  const std::int64_t partial_ld = round_up(s.columns, panel_columns);
  Out* const out = static_cast<Out*>(g.c.data) + row * g.c.ld + s.column0;
  float* const partial = g.partial + (row - s.row0) * partial_ld;
  Finish<Out> finish;
  for (std::int64_t column = 0; column < s.columns; column += panel_columns) {
    const Pair* panel = g.packed_b + column / panel_columns * s.panel_pairs();
    for (std::int64_t step = 0; step < steps; step += panel_steps) {
      const std::int64_t count = std::min(panel_steps, steps - step);
      const Pair* right = panel + step * step_pairs * panel_columns;
      const char* next = reinterpret_cast<const char*>(right + count * step_pairs * panel_columns);
      const bool is_last = step + count == steps;
      for (std::int64_t r = 0; r < rows; r += amx::block_rows) {
        const Pair* left = packed + r / amx::block_rows * block_pairs + step * amx::block_rows * step_pairs;
        float* sum = sums + r * panel_columns;
        const amx::Left block{left, step_pairs, amx::block_rows * step_pairs};
        const Out* rows_ahead = is_last && (s.last || std::is_same_v<Out, float>) ? out + r * g.c.ld + column : nullptr;
        const float* sums_ahead = is_last && !(s.first && s.last) ? partial + r * partial_ld + column : nullptr;
        const Errands<Out> errands{finish,
                                   next + r / amx::block_rows * count * 256,
                                   reinterpret_cast<const char*>(rows_ahead),
                                   reinterpret_cast<const char*>(sums_ahead),
                                   g.c.ld * static_cast<std::int64_t>(sizeof(Out)),
                                   partial_ld * static_cast<std::int64_t>(sizeof(float))};
        if (step == 0)
          amx::multiply<false>(block, {right}, count, sum, panel_columns, errands);
        else
          amx::multiply<true>(block, {right}, count, sum, panel_columns, errands);
        if (is_last)
          finish = {std::min(amx::block_rows, rows - r),
                    sum,
                    out + r * g.c.ld + column,
                    partial + r * partial_ld + column,
                    g.c.ld,
                    partial_ld,
                    bf16_units::first_lanes(s.columns - column),
                    std::is_same_v<Out, float> ? g.accumulate || !s.first : !s.first,
                    s.last};
      }
    }
  }
  while (finish.rows > 0) finish.row();
}

template <class Out>
void multiply_all(const Problem& g, int threads) {
  const std::int64_t columns = even_piece(g.n, max_columns, panel_columns),
                     depth = even_piece(g.k, max_depth, panel_depth);
  const bool sums_wait = std::is_same_v<Out, bf16> && g.k > depth;
  const std::int64_t rows = sums_wait ? even_piece(g.m, max_partial_rows, amx::block_rows) : g.m;
  // As many tasks for each thread: the others would wait for the odd one.
  const std::int64_t tasks = round_up((rows + task_rows - 1) / task_rows, threads);
  const std::int64_t task = round_up((rows + tasks - 1) / tasks, amx::block_rows);
  with_team(threads, [&](const Team& team) {
    const amx::Tiles tiles;
    float* scratch = g.thread_parts + team.thread() * g.per_thread;
    for (std::int64_t column = 0; column < g.n; column += columns)
      for (std::int64_t row0 = 0; row0 < g.m; row0 += rows)
        for (std::int64_t depth0 = 0; depth0 < g.k; depth0 += depth) {
          const Block s{row0,
                        column,
                        depth0,
                        std::min(rows, g.m - row0),
                        std::min(columns, g.n - column),
                        std::min(depth, g.k - depth0),
                        depth0 == 0,
                        depth0 + depth >= g.k};
          team.share((s.columns + panel_columns - 1) / panel_columns,
                     [&](std::int64_t panel) { pack_b_panel(g, s, panel); });
          team.share((s.rows + task - 1) / task, [&](std::int64_t i) {
            multiply_rows<Out>(g, s, row0 + i * task, std::min(task, s.rows - i * task), scratch);
          });
        }
  });
}

}  // namespace

std::uint64_t amx_gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result) {
  return Layout(m, n, k, result).bytes(machine_cores());
}

void amx_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
              std::int64_t k, bool accumulate, std::span<std::byte> workspace) {
  const Layout layout(m, n, k, c.dtype);
  auto* at = reinterpret_cast<float*>(workspace.data());
  const Problem g{a,
                  b,
                  c,
                  m,
                  n,
                  k,
                  accumulate,
                  reinterpret_cast<Pair*>(at),
                  at + layout.packed_b,
                  at + layout.packed_b + layout.partial,
                  layout.per_thread};
  const int threads = m * n * k < parallel_products ? 1 : std::min(omp_get_max_threads(), machine_cores());
  if (c.dtype == Dtype::f32)
    multiply_all<float>(g, threads);
  else
    multiply_all<bf16>(g, threads);
}

}  // namespace sluice::kernels
HWY_POP_ATTRIBUTES
