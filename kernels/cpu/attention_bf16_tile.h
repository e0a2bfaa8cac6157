// Pieces that attention's forward and backward on the CPU's bf16 units (AVX512_BF16) share.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/bf16_pairs.h"

HWY_PUSH_ATTRIBUTES(SLUICE_BF16_UNITS)
namespace sluice::kernels::bf16_units {

/// Sums of a tile: 16 registers, twice what hides the latency of a multiply, and each right operand is used 8 times.
constexpr std::int64_t tile_rows = 8, tile_vectors = 2, tile_columns = tile_vectors * lanes;
using Tile = __m512[tile_rows][tile_vectors];

// --- lanes ---------------------------------------------------------------------------------------------------------

/// Lanes first .. first + 15 of a row that lie in `range`.
HWY_INLINE __mmask16 lanes_in(const KeyRange& range, std::int64_t first) {
  const auto below = [first](std::int64_t end) { return (1u << std::clamp<std::int64_t>(end - first, 0, lanes)) - 1; };
  return static_cast<__mmask16>(below(range.last) & ~below(range.first));
}

/// 2^x within 2 ulp in the lanes of `mask`, zero in the others. NaN stays NaN. The polynomial is the minimax one of
/// degree 5 for the relative error on [0, 1) with 2^0 = 1: 2^-23.5.
HWY_INLINE __m512 exp2_or_zero(__mmask16 mask, __m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.00186713008f);
  for (const float c : {0.00901703028f, 0.0557999131f, 0.24016445f, 0.693151312f, 1.0f})
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_maskz_scalef_ps(mask, p, x);
}

/// n elements of a row as fp32 times `factor` to bf16.
HWY_INLINE void narrow_row(const float* src, float factor, std::int64_t n, bf16* dst) {
  for (std::int64_t j = 0; j < n; j += lanes) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(src + j), _mm512_set1_ps(factor));
    _mm256_mask_storeu_epi16(dst + j, lanes_in({0, n}, j), (__m256i)_mm512_cvtneps_pbh(x));
  }
}

/// Packed keys and values of one pair of (batch, kv head), in the forward pass.
struct PackedPair {
  float* data;
  std::int64_t padded;  ///< elements of a row
  Pair* keys(std::int64_t block) const { return reinterpret_cast<Pair*>(data) + block * forward_key_block * padded; }
  Pair* values(std::int64_t block) const { return keys(block) + forward_key_block * padded / 2; }
};

/// out and lse of a block of queries. `sum`: 16 lanes a row; `maximum`: of scores as exponents of 2.
HWY_INLINE void write_queries(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head,
                              std::int64_t query0, std::int64_t rows, const float* output, const float* sum,
                              const float* maximum) {
  const AttentionShape s = call.row(batch);
  bf16* out = call.out_mutable + (batch * s.queries + query0) * s.out_stride + head * s.head_dim;
  float* lse = call.lse_mutable + (batch * s.heads + head) * s.queries + query0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float total = _mm512_reduce_add_ps(_mm512_loadu_ps(sum + r * lanes));
    narrow_row(output + r * padded_head(s), output_factor(s, query0 + r, total), s.head_dim, out + r * s.out_stride);
    lse[r] = maximum[r] * std::numbers::ln2_v<float> + std::log(total);
  }
}

/// What the backward pass of one head reads.
struct HeadOperands {
  Rows q, out, d_out, k, v;
};
HWY_INLINE HeadOperands operands_of(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head) {
  const AttentionShape& s = call.shape;
  const std::int64_t dim = s.head_dim, column = head * dim, kv_column = head / (s.heads / s.kv_heads) * dim;
  const std::int64_t row0 = batch * s.queries, key0 = batch * s.keys;
  return {{call.q + row0 * s.q_stride + column, s.q_stride, s.queries, dim},
          {call.out + row0 * s.out_stride + column, s.out_stride, s.queries, dim},
          {call.d_out + row0 * s.out_stride + column, s.out_stride, s.queries, dim},
          {call.k + key0 * s.k_stride + kv_column, s.k_stride, s.keys, dim},
          {call.v + key0 * s.v_stride + kv_column, s.v_stride, s.keys, dim}};
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
    const std::int64_t first = std::max<std::int64_t>(key0 + key - s.offset() - query0, 0);
    const std::int64_t end = key0 + std::min(key + n, keys);
    std::int64_t last = rows;
    while (last > first && visible_keys(s, query0 + last - 1).first >= end) --last;
    return {first, last};
  }
};

// --- packing -------------------------------------------------------------------------------------------------------

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
