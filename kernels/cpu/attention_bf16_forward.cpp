#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_bf16_tile.h"

HWY_PUSH_ATTRIBUTES(SLUICE_BF16_UNITS)
namespace sluice::kernels::bf16_units {
namespace {

constexpr std::int64_t key_block = forward_key_block;
constexpr std::int64_t score_ld = forward_key_block + score_padding, probability_ld = score_ld / 2;

/// One thread's part of the workspace, for one block of queries.
struct Scratch {
  float *output, *scores;         // scores are scaled, and exponents of 2
  float *sum, *maximum, *shrink;  // of each row: sums so far in 16 lanes, maximum, what it takes off what is so far
  Pair *queries, *probabilities;
  Scratch(float* at, std::int64_t padded)
      : output(at),
        scores(output + query_block * padded),
        sum(scores + query_block * score_ld),
        maximum(sum + query_block * lanes),
        shrink(maximum + query_block),
        queries(reinterpret_cast<Pair*>(shrink + query_block)),
        probabilities(queries + query_block * padded / 2) {}
};

void multiply_keys(const Block& b, const Pair* keys, const Scratch& x, std::int64_t padded) {
  const std::int64_t pairs = pairs_of(b.s.head_dim);
  const __m512 scale = _mm512_set1_ps(b.s.scale * std::numbers::log2e_v<float>);
  for (std::int64_t key = 0; key < b.keys; key += tile_columns)
    for (std::int64_t r = 0; r < b.rows; r += tile_rows) {
      if (!b.sees(r, tile_rows, key, tile_columns)) continue;
      Tile score;
      multiply({x.queries + r * padded / 2, padded / 2, 1}, keys + key * pairs, pairs, score);
      for (std::int64_t i = 0; i < tile_rows; ++i)
        for (std::int64_t v = 0; v < tile_vectors; ++v)
          _mm512_storeu_ps(x.scores + (r + i) * score_ld + key + v * lanes, _mm512_mul_ps(score[i][v], scale));
    }
}

/// Probabilities of row r, less what its running maximum takes off: pairs over the keys that its tile needs.
HWY_INLINE void softmax_row(const KeyRange& tile, const KeyRange& visible, std::int64_t r, const Scratch& x) {
  const float* scores = x.scores + r * score_ld;
  Pair* probabilities = x.probabilities + r * probability_ld;
  __m512 largest = _mm512_set1_ps(x.maximum[r]);
  for (std::int64_t j = visible.first / lanes * lanes; j < visible.last; j += lanes)
    largest = _mm512_mask_max_ps(largest, lanes_in(visible, j), _mm512_loadu_ps(scores + j), largest);
  const float now = visible.first < visible.last ? _mm512_reduce_max_ps(largest) : x.maximum[r];
  const __m512 maximum = _mm512_set1_ps(now);
  __m512 sum[tile_vectors] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (std::int64_t j = tile.first / tile_columns * tile_columns; j < tile.last; j += tile_columns) {
    __m512 e[tile_vectors];
    for (std::int64_t v = 0; v < tile_vectors; ++v) {
      const std::int64_t at = j + v * lanes;
      e[v] = exp2_or_zero(lanes_in(visible, at), _mm512_sub_ps(_mm512_loadu_ps(scores + at), maximum));
      sum[v] = _mm512_add_ps(sum[v], e[v]);
    }
    _mm512_storeu_si512(probabilities + j / 2, pair_neighbours(e[0], e[1]));
  }
  const __m512 shrink = exp2_or_zero(0xffff, _mm512_sub_ps(_mm512_set1_ps(x.maximum[r]), maximum));
  _mm512_storeu_ps(x.sum + r * lanes,
                   _mm512_fmadd_ps(_mm512_loadu_ps(x.sum + r * lanes), shrink, _mm512_add_ps(sum[0], sum[1])));
  x.shrink[r] = _mm512_cvtss_f32(shrink);
  x.maximum[r] = now;
}

void add_values(const Block& b, const Pair* values, const Scratch& x, std::int64_t padded) {
  const std::int64_t depth = pairs_of(b.keys);
  for (std::int64_t column = 0; column < b.s.head_dim; column += tile_columns)
    for (std::int64_t r = 0; r < b.rows; r += tile_rows) {
      const KeyRange seen = b.visible(r, tile_rows);
      if (seen.first >= seen.last) continue;
      const std::int64_t first = seen.first / 2;
      Tile sum;
      multiply({x.probabilities + r * probability_ld + first, probability_ld, 1},
               values + column * depth + first * tile_columns, pairs_of(seen.last) - first, sum);
      for (std::int64_t i = 0; i < tile_rows; ++i)
        for (std::int64_t v = 0; v < tile_vectors; ++v) {
          float* at = x.output + (r + i) * padded + column + v * lanes;
          _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), _mm512_set1_ps(x.shrink[r + i]), sum[i][v]));
        }
    }
}

}  // namespace

void pack_key_block(const AttentionCall<bf16>& call, std::int64_t pair, std::int64_t block, float* packed_pair) {
  const AttentionShape& s = call.shape;
  const PackedPair packed{packed_pair, padded_head(s)};
  const std::int64_t batch = pair / s.kv_heads, column = pair % s.kv_heads * s.head_dim;
  const std::int64_t key0 = block * key_block, count = std::min(key_block, s.keys - key0);
  const std::int64_t row0 = batch * s.keys + key0;
  pack_across({call.k + row0 * s.k_stride + column, s.k_stride, count, s.head_dim}, pairs_of(s.head_dim),
              packed.keys(block));
  pack_down({call.v + row0 * s.v_stride + column, s.v_stride, count, s.head_dim}, pairs_of(count),
            packed.values(block));
}

void query_block_forward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, std::int64_t query0,
                         float* packed_pair, float* scratch) {
  const AttentionShape s = call.row(batch);
  const PackedPair packed{packed_pair, padded_head(s)};
  const Scratch x(scratch, padded_head(s));
  const std::int64_t rows = std::min(query_block, s.queries - query0), dim = s.head_dim, padded = packed.padded;
  const std::int64_t row0 = batch * s.queries + query0;
  copy_rows({call.q + row0 * s.q_stride + head * dim, s.q_stride, rows, dim}, x.queries, padded / 2);
  std::fill(x.output, x.output + query_block * padded, 0.0f);
  std::fill(x.sum, x.sum + query_block * lanes, 0.0f);
  std::fill(x.maximum, x.maximum + query_block, std::numeric_limits<float>::lowest());
  const KeyRange seen = visible_to(s, query0, query0 + rows);
  for (std::int64_t key0 = seen.first / key_block * key_block; key0 < seen.last; key0 += key_block) {
    const Block b{s, query0, rows, key0, std::min(key_block, s.keys - key0)};
    multiply_keys(b, packed.keys(key0 / key_block), x, padded);
    for (std::int64_t r = 0; r < rows; ++r)
      softmax_row(b.visible(r / tile_rows * tile_rows, tile_rows), b.visible(r, 1), r, x);
    add_values(b, packed.values(key0 / key_block), x, padded);
  }
  write_queries(call, batch, head, query0, rows, x.output, x.sum, x.maximum);
}

}  // namespace sluice::kernels::bf16_units
HWY_POP_ATTRIBUTES
