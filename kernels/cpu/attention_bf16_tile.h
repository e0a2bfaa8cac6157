// Pieces that attention's forward and backward on the CPU's bf16 units (AVX512_BF16) share.
//
// A unit multiplies *pairs*: each 32-bit lane of its operands holds two bf16 that are neighbours in depth, and both
// products are added to one fp32 sum. So operands are kept as pairs. The left one is broadcast pair by pair, the right
// one is packed into panels of tile_columns columns.
#pragma once

#include <hwy/base.h>
// g++ 12 takes the operands that its intrinsics leave undefined on purpose for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_layout.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
namespace sluice::kernels::bf16_units {

using Pair = std::uint32_t;
constexpr std::int64_t lanes = 16;
/// Sums of a tile: 16 registers, twice what hides the latency of a multiply, and each right operand is used 8 times.
constexpr std::int64_t tile_rows = 8, tile_vectors = 2, tile_columns = tile_vectors * lanes;
using Tile = __m512[tile_rows][tile_vectors];

constexpr std::int64_t pairs_of(std::int64_t depth) { return (depth + 1) / 2; }

// --- lanes ---------------------------------------------------------------------------------------------------------

/// Lanes first .. first + 15 of a row that lie in `range`.
HWY_INLINE __mmask16 lanes_in(const KeyRange& range, std::int64_t first) {
  const auto below = [first](std::int64_t end) { return (1u << std::clamp<std::int64_t>(end - first, 0, lanes)) - 1; };
  return static_cast<__mmask16>(below(range.last) & ~below(range.first));
}

HWY_INLINE __mmask32 first_lanes(std::int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

/// 2^x within 2 ulp in the lanes of `mask`, zero in the others. NaN stays NaN. The polynomial is the minimax one of
/// degree 5 for the relative error on [0, 1) with 2^0 = 1: 2^-23.5.
HWY_INLINE __m512 exp2_or_zero(__mmask16 mask, __m512 x) {
  const __m512 f = _mm512_sub_ps(x, _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF));
  __m512 p = _mm512_set1_ps(0.00186713008f);
  for (const float c : {0.00901703028f, 0.0557999131f, 0.24016445f, 0.693151312f, 1.0f})
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_maskz_scalef_ps(mask, p, x);
}

/// 16-bit lanes 0, n, 1, n + 1, 2, ...: a permutation by these makes pairs of lanes j and n + j.
HWY_INLINE __m512i pairing(int n) {
  const __m512i j = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_or_si512(j, _mm512_slli_epi32(_mm512_add_epi32(j, _mm512_set1_epi32(n)), 16));
}
/// Lane j: the pair (a[j], b[j]).
HWY_INLINE __m512i pair_rows(__m512 a, __m512 b) {
  return _mm512_permutexvar_epi16(pairing(16), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
/// Lane j: the pair of elements 2 j and 2 j + 1 of a row of 32.
HWY_INLINE __m512i pair_neighbours(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

/// n elements of a row as fp32 times `factor` to bf16.
HWY_INLINE void narrow_row(const float* src, float factor, std::int64_t n, bf16* dst) {
  for (std::int64_t j = 0; j < n; j += lanes) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(src + j), _mm512_set1_ps(factor));
    _mm256_mask_storeu_epi16(dst + j, lanes_in({0, n}, j), (__m256i)_mm512_cvtneps_pbh(x));
  }
}

/// One block of queries against one block of keys.
struct Block {
  const AttentionShape& s;
  std::int64_t query0, rows, key0, keys;
  /// Keys of the block that any of `n` rows from r on sees; empty if first >= last.
  KeyRange visible(std::int64_t r, std::int64_t n) const {
    if (r >= rows) return {0, 0};
    return visible_in_block(s, query0 + r, query0 + std::min(r + n, rows), key0, key0 + keys);
  }
  bool sees(std::int64_t r, std::int64_t rows_, std::int64_t key, std::int64_t n) const {
    const KeyRange range = visible(r, rows_);
    return range.first < range.last && range.first < key + n && key < range.last;
  }
  /// Rows of the block that see any of `n` keys from `key` on.
  KeyRange seeing(std::int64_t key, std::int64_t n) const {
    const std::int64_t first = key0 + key - (s.keys - s.queries) - query0;
    const std::int64_t last = s.window > 0 ? first + n - 1 + s.window : rows;
    return {std::max<std::int64_t>(first, 0), std::min(last, rows)};
  }
};

// --- packing -------------------------------------------------------------------------------------------------------

/// Rows of `n` bf16 whose rows lie `ld` apart.
struct Rows {
  const bf16* data;
  std::int64_t ld, count, n;
  const bf16* row(std::int64_t r) const { return data + r * ld; }
  Rows part(std::int64_t first, std::int64_t rows) const { return {row(first), ld, rows, n}; }
  /// Elements j .. j + 31 of row r; zeros beyond the row and beyond the last row.
  HWY_INLINE __m512i load(std::int64_t r, std::int64_t j) const {
    return _mm512_maskz_loadu_epi16(r < count ? first_lanes(n - j) : 0, row(r) + j);
  }
};

/// A left operand whose depth runs along rows: dst[r * ld + p] = pair p of row r.
HWY_INLINE void copy_rows(const Rows& rows, Pair* dst, std::int64_t ld) {
  for (std::int64_t r = 0; r < rows.count; ++r)
    for (std::int64_t j = 0; j < rows.n; j += 2 * lanes) _mm512_storeu_si512(dst + r * ld + j / 2, rows.load(r, j));
}

/// A right operand whose depth runs down the rows: its columns are those of `rows`.
HWY_INLINE void pack_down(const Rows& rows, Pair* dst) {
  const __m512i lower = pairing(32), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  for (std::int64_t j = 0; j < rows.n; j += tile_columns)
    for (std::int64_t r = 0; r < rows.count; r += 2, dst += tile_columns) {
      const __m512i a = rows.load(r, j), b = rows.load(r + 1, j);
      _mm512_storeu_si512(dst, _mm512_permutex2var_epi16(a, lower, b));
      _mm512_storeu_si512(dst + lanes, _mm512_permutex2var_epi16(a, upper, b));
    }
}

HWY_INLINE void transpose(__m512i (&x)[lanes]) {
  __m512i t[lanes];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; ++h) {  // x[i + c]: columns c, 4 + c, 8 + c, 12 + c of rows i .. i + 3
      x[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + h + 2]);
      x[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + h + 2]);
    }
  for (int c = 0; c < 4; ++c) {
    constexpr int even = 0x88, odd = 0xdd;
    t[c] = _mm512_shuffle_i32x4(x[c], x[4 + c], even);
    t[4 + c] = _mm512_shuffle_i32x4(x[c], x[4 + c], odd);
    t[8 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], even);
    t[12 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], odd);
  }
  for (int c = 0; c < 8; ++c) {
    x[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    x[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
  }
}

/// A right operand whose depth runs along the rows: its columns are the rows.
HWY_INLINE void pack_across(const Rows& rows, Pair* dst) {
  const std::int64_t pairs = pairs_of(rows.n);
  for (std::int64_t r = 0; r < rows.count; r += lanes)
    for (std::int64_t p = 0; p < pairs; p += lanes) {
      __m512i x[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) x[i] = rows.load(r + i, 2 * p);
      transpose(x);
      Pair* at = dst + r / tile_columns * tile_columns * pairs + r % tile_columns + p * tile_columns;
      for (std::int64_t i = 0; i < std::min(lanes, pairs - p); ++i) _mm512_storeu_si512(at + i * tile_columns, x[i]);
    }
}

HWY_INLINE float dot(const Rows& a, const Rows& b, std::int64_t r) {
  __m512 sum = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < a.n; j += 2 * lanes)
    sum = _mm512_dpbf16_ps(sum, (__m512bh)a.load(r, j), (__m512bh)b.load(r, j));
  return _mm512_reduce_add_ps(sum);
}

// --- tile ----------------------------------------------------------------------------------------------------------

/// Pair p of row i lies at data + i * row_step + p * depth_step. tile_rows rows are read.
struct LeftPairs {
  const Pair* data;
  std::int64_t row_step, depth_step;
};

/// sum = left x right over `pairs` pairs of one panel.
HWY_INLINE void multiply(const LeftPairs& a, const Pair* b, std::int64_t pairs, Tile& sum) {
  for (auto& row : sum)
    for (__m512& v : row) v = _mm512_setzero_ps();
  const Pair* left = a.data;
  const std::int64_t row_step = a.row_step, depth_step = a.depth_step;
  for (std::int64_t p = 0; p < pairs; ++p) {
    __m512bh right[tile_vectors];
    for (std::int64_t v = 0; v < tile_vectors; ++v) right[v] = (__m512bh)_mm512_loadu_si512(b + v * lanes);
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(left[i * row_step]));
      for (std::int64_t v = 0; v < tile_vectors; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], x, right[v]);
    }
    left += depth_step;
    b += tile_columns;
  }
}

}  // namespace sluice::kernels::bf16_units
HWY_POP_ATTRIBUTES
