// Operands of the CPU's bf16 units (AVX512_BF16, AMX): packing them into pairs (internal to matmul and attention).
//
// A unit multiplies *pairs*: each 32-bit lane of its operands holds two bf16 that are neighbours in depth, and both
// products are added to one fp32 sum. So operands are kept as pairs, the right one in panels of panel_columns columns.
#pragma once

#include <hwy/base.h>
// g++ 12 takes the operands that its intrinsics leave undefined on purpose for mistakes (GCC bug 105593). clang does
// not know the warning.
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstdint>

#include "sluice/dtype.h"

#define SLUICE_BF16_UNITS "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"

namespace sluice::kernels::bf16_units {
/// True if the CPU multiplies pairs of bf16 (AVX512_BF16; it then has the rest of AVX-512 that is used with it).
inline bool available() { return __builtin_cpu_supports("avx512bf16") != 0; }
}  // namespace sluice::kernels::bf16_units

HWY_PUSH_ATTRIBUTES(SLUICE_BF16_UNITS)
namespace sluice::kernels::bf16_units {

using Pair = std::uint32_t;
constexpr std::int64_t lanes = 16;
/// Columns of a panel of a right operand: pair p of column j lies at p * panel_columns + j.
constexpr std::int64_t panel_columns = 2 * lanes;

constexpr std::int64_t pairs_of(std::int64_t depth) { return (depth + 1) / 2; }

HWY_INLINE __mmask32 first_lanes(std::int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

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

/// A right operand whose depth runs down the rows, `pairs` pairs of rows deep with zeros below the last row: its
/// columns are those of `rows`.
HWY_INLINE void pack_down(const Rows& rows, std::int64_t pairs, Pair* dst) {
  const __m512i lower = pairing(32), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  for (std::int64_t j = 0; j < rows.n; j += panel_columns)
    for (std::int64_t r = 0; r < 2 * pairs; r += 2, dst += panel_columns) {
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

/// A right operand whose depth runs along the rows, `pairs` pairs deep with zeros after a row's end: its columns are
/// the rows, with columns of zeros to a multiple of 16.
HWY_INLINE void pack_across(const Rows& rows, std::int64_t pairs, Pair* dst) {
  for (std::int64_t r = 0; r < rows.count; r += lanes)
    for (std::int64_t p = 0; p < pairs; p += lanes) {
      __m512i x[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) x[i] = rows.load(r + i, 2 * p);
      transpose(x);
      Pair* at = dst + r / panel_columns * panel_columns * pairs + r % panel_columns + p * panel_columns;
      for (std::int64_t i = 0; i < std::min(lanes, pairs - p); ++i) _mm512_storeu_si512(at + i * panel_columns, x[i]);
    }
}

/// A block of a left operand, 32 rows of 32 elements, zeros where there are none.
HWY_INLINE void copy_block(const Rows& rows, Pair* dst) {
  for (std::int64_t r = 0; r < 2 * lanes; ++r) _mm512_storeu_si512(dst + r * lanes, rows.load(r, 0));
}

/// The same from its transpose: `rows` are its columns.
HWY_INLINE void copy_block_transposed(const Rows& rows, Pair* dst) {
  const __m512i lower = pairing(32), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  __m512i x[lanes], y[lanes];
  for (std::int64_t p = 0; p < lanes; ++p) {
    const __m512i a = rows.load(2 * p, 0), b = rows.load(2 * p + 1, 0);
    x[p] = _mm512_permutex2var_epi16(a, lower, b);
    y[p] = _mm512_permutex2var_epi16(a, upper, b);
  }
  transpose(x);
  transpose(y);
  for (std::int64_t i = 0; i < lanes; ++i) {
    _mm512_storeu_si512(dst + i * lanes, x[i]);
    _mm512_storeu_si512(dst + (lanes + i) * lanes, y[i]);
  }
}

/// A left operand in such blocks: those of 32 rows one after the other, each with its blocks along the depth.
HWY_INLINE void pack_left(const Rows& rows, Pair* dst) {
  for (std::int64_t r = 0; r < rows.count; r += 2 * lanes)
    for (std::int64_t j = 0; j < rows.n; j += 2 * lanes, dst += 2 * lanes * lanes)
      copy_block({rows.row(r) + j, rows.ld, rows.count - r, rows.n - j}, dst);
}
HWY_INLINE void pack_left_transposed(const Rows& rows, Pair* dst) {
  for (std::int64_t j = 0; j < rows.n; j += 2 * lanes)
    for (std::int64_t r = 0; r < rows.count; r += 2 * lanes, dst += 2 * lanes * lanes)
      copy_block_transposed({rows.row(r) + j, rows.ld, rows.count - r, rows.n - j}, dst);
}

}  // namespace sluice::kernels::bf16_units
HWY_POP_ATTRIBUTES
