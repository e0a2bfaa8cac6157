#include <numbers>
#include <utility>

#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_bf16_tile.h"

HWY_PUSH_ATTRIBUTES(SLUICE_BF16_UNITS)
namespace sluice::kernels::bf16_units {
namespace {

constexpr std::int64_t key_block = 256, query_block = 64;
constexpr std::int64_t score_ld = key_block + score_padding;

/// One thread's part of the workspace.
struct Scratch {
  float *dq, *delta;                                    // all queries
  Pair *keys_t, *keys, *values_t;                       // one block of keys as right operands: across, down, across
  Pair *q, *q_down, *d_out, *d_out_down;                // one block of queries as left and right operands
  Pair *probabilities_down, *d_scores_down, *d_scores;  // pairs of rows, and pairs of neighbours in a row
  Scratch(float* at, const AttentionShape& s) {
    const auto take = [&at](std::int64_t floats) { return std::exchange(at, at + floats); };
    const auto take_pairs = [&take](std::int64_t pairs) { return reinterpret_cast<Pair*>(take(pairs)); };
    const std::int64_t padded = padded_head(s), queries = round_up(s.queries, 16);
    dq = take(queries * padded);
    delta = take(queries);
    for (Pair** p : {&keys_t, &keys, &values_t}) *p = take_pairs(key_block * padded / 2);
    for (Pair** p : {&q, &q_down, &d_out, &d_out_down}) *p = take_pairs(query_block * padded / 2);
    for (Pair** p : {&probabilities_down, &d_scores_down, &d_scores}) *p = take_pairs(query_block * score_ld / 2);
  }
};

/// sums of a tile are added to `rows` rows of out.
HWY_INLINE void add_tile(const Tile& sum, std::int64_t rows, float* out, std::int64_t ld) {
  for (std::int64_t i = 0; i < tile_rows; ++i)
    if (i < rows)
      for (std::int64_t v = 0; v < tile_vectors; ++v) {
        float* at = out + i * ld + v * lanes;
        _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum[i][v]));
      }
}

/// One tile of probabilities and of the gradient of scaled scores: rows from r on, keys from `key` on. Hidden keys get
/// zeros in both.
void tile_of_scores(const Block& b, std::int64_t r, std::int64_t key, const float* lse, const Scratch& x) {
  const std::int64_t pairs = pairs_of(b.s.head_dim), row_pairs = padded_head(b.s) / 2;
  const __m512 scale = _mm512_set1_ps(b.s.scale), scale2 = _mm512_set1_ps(b.s.scale * std::numbers::log2e_v<float>);
  __mmask16 seen[tile_rows][tile_vectors];
  for (std::int64_t i = 0; i < tile_rows; ++i)
    for (std::int64_t v = 0; v < tile_vectors; ++v) seen[i][v] = lanes_in(b.visible(r + i, 1), key + v * lanes);
  Tile p, ds;
  multiply({x.q + r * row_pairs, row_pairs, 1}, x.keys_t + key * pairs, pairs, p);
  for (std::int64_t i = 0; i < tile_rows; ++i) {
    const __m512 shift = _mm512_set1_ps(lse[r + i] * std::numbers::log2e_v<float>);
    for (std::int64_t v = 0; v < tile_vectors; ++v)
      p[i][v] = exp2_or_zero(seen[i][v], _mm512_fmsub_ps(p[i][v], scale2, shift));
  }
  Pair* down = x.probabilities_down + r / 2 * score_ld + key;
  for (std::int64_t i = 0; i < tile_rows; i += 2)
    for (std::int64_t v = 0; v < tile_vectors; ++v)
      _mm512_storeu_si512(down + i / 2 * score_ld + v * lanes, pair_rows(p[i][v], p[i + 1][v]));
  multiply({x.d_out + r * row_pairs, row_pairs, 1}, x.values_t + key * pairs, pairs, ds);
  for (std::int64_t i = 0; i < tile_rows; ++i) {
    const __m512 delta = _mm512_set1_ps(x.delta[b.query0 + r + i]);
    for (std::int64_t v = 0; v < tile_vectors; ++v)
      ds[i][v] = _mm512_maskz_mul_ps(seen[i][v], p[i][v], _mm512_fmsub_ps(ds[i][v], scale, delta));
    _mm512_storeu_si512(x.d_scores + ((r + i) * score_ld + key) / 2, pair_neighbours(ds[i][0], ds[i][1]));
  }
  down = x.d_scores_down + r / 2 * score_ld + key;
  for (std::int64_t i = 0; i < tile_rows; i += 2)
    for (std::int64_t v = 0; v < tile_vectors; ++v)
      _mm512_storeu_si512(down + i / 2 * score_ld + v * lanes, pair_rows(ds[i][v], ds[i + 1][v]));
}

/// Adds to dk and dv what the keys from `key` on get from this block of queries.
void add_to_keys(const Block& b, std::int64_t key, const Scratch& x, float* dk, float* dv) {
  const std::int64_t padded = padded_head(b.s), depth = pairs_of(b.rows), rows = std::min(tile_rows, b.keys - key);
  const KeyRange seen = b.seeing(key, tile_rows);
  const std::int64_t first = seen.first / 2, pairs = pairs_of(seen.last) - first;
  for (std::int64_t column = 0; column < b.s.head_dim; column += tile_columns) {
    const std::int64_t right = column * depth + first * tile_columns;
    Tile sum;
    multiply({x.probabilities_down + first * score_ld + key, 1, score_ld}, x.d_out_down + right, pairs, sum);
    add_tile(sum, rows, dv + key * padded + column, padded);
    multiply({x.d_scores_down + first * score_ld + key, 1, score_ld}, x.q_down + right, pairs, sum);
    add_tile(sum, rows, dk + key * padded + column, padded);
  }
}

void add_to_queries(const Block& b, const Scratch& x) {
  const std::int64_t padded = padded_head(b.s), depth = pairs_of(b.keys);
  for (std::int64_t column = 0; column < b.s.head_dim; column += tile_columns)
    for (std::int64_t r = 0; r < b.rows; r += tile_rows) {
      const KeyRange seen = b.visible(r, tile_rows);
      if (seen.first >= seen.last) continue;
      const std::int64_t first = seen.first / 2;
      Tile sum;
      multiply({x.d_scores + r * score_ld / 2 + first, score_ld / 2, 1}, x.keys + column * depth + first * tile_columns,
               pairs_of(seen.last) - first, sum);
      add_tile(sum, std::min(tile_rows, b.rows - r), x.dq + (b.query0 + r) * padded + column, padded);
    }
}

}  // namespace

void head_backward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, float* dk, float* dv,
                   float* scratch) {
  const AttentionShape s = call.row(batch);
  const Scratch x(scratch, s);
  const std::int64_t dim = s.head_dim, padded = padded_head(s), column = head * dim;
  const std::int64_t row0 = batch * s.queries;
  const auto [q, out, d_out, k, v] = operands_of(call, batch, head);
  const float* lse = call.lse + (batch * s.heads + head) * s.queries;
  for (std::int64_t i = 0; i < s.queries; ++i) x.delta[i] = s.scale * dot(out, d_out, i);
  std::fill(x.dq, x.dq + s.queries * padded, 0.0f);
  for (std::int64_t key0 = 0; key0 < s.keys; key0 += key_block) {
    const std::int64_t keys = std::min(key_block, s.keys - key0);
    float *block_dk = dk + key0 * padded, *block_dv = dv + key0 * padded;
    std::fill(block_dk, block_dk + keys * padded, 0.0f);
    std::fill(block_dv, block_dv + keys * padded, 0.0f);
    if (!any_sees(s, key0, key0 + keys)) continue;
    pack_across(k.part(key0, keys), pairs_of(dim), x.keys_t);
    pack_across(v.part(key0, keys), pairs_of(dim), x.values_t);
    pack_down(k.part(key0, keys), pairs_of(keys), x.keys);
    for (std::int64_t query0 = 0; query0 < s.queries; query0 += query_block) {
      const Block b{s, query0, std::min(query_block, s.queries - query0), key0, keys};
      const KeyRange seen = b.visible(0, b.rows);
      if (seen.first >= seen.last) continue;
      copy_rows(q.part(query0, b.rows), x.q, padded / 2);
      copy_rows(d_out.part(query0, b.rows), x.d_out, padded / 2);
      pack_down(q.part(query0, b.rows), pairs_of(b.rows), x.q_down);
      pack_down(d_out.part(query0, b.rows), pairs_of(b.rows), x.d_out_down);
      for (std::int64_t key = 0; key < keys; key += tile_columns)
        for (std::int64_t r = 0; r < b.rows; r += tile_rows)
          if (b.sees(r, tile_rows, key, tile_columns)) tile_of_scores(b, r, key, lse + query0, x);
      for (std::int64_t key = seen.first / tile_rows * tile_rows; key < seen.last; key += tile_rows)
        add_to_keys(b, key, x, block_dk, block_dv);
      add_to_queries(b, x);
    }
  }
  for (std::int64_t i = 0; i < s.queries; ++i)
    narrow_row(x.dq + i * padded, 1.0f, dim, call.dq + (row0 + i) * s.q_stride + column);
}

}  // namespace sluice::kernels::bf16_units
HWY_POP_ATTRIBUTES
