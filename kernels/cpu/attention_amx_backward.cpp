#include <numbers>
#include <utility>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_bf16_tile.h"

HWY_PUSH_ATTRIBUTES(SLUICE_AMX)
namespace sluice::kernels::amx {
namespace {

using namespace bf16_units;  // NOLINT(google-build-using-namespace): the other half of this code

constexpr std::int64_t key_block = 256, query_block = 128;
/// Rows of a block of scores, in elements or floats.
constexpr std::int64_t score_ld = key_block + score_padding;

/// One thread's part of the workspace.
struct Scratch {
  float *dq, *delta;                               // all queries
  Pair *keys_t, *keys, *values_t;                  // one block of keys as right operands: across, down, across
  Pair *q, *q_t, *d_out, *d_out_t;                 // one block of queries as left operands, and transposed
  Pair *probabilities, *d_scores_down, *d_scores;  // pairs of rows as right operands, and rows as left ones
  float *dk_t, *dv_t;                              // sums of one block of keys, transposed
  float *shift, *row_delta;                        // of the block's queries
  float *score, *d_probability;                    // one block of 32 x 32
  Scratch(float* at, const AttentionShape& s) {
    const auto take = [&at](std::int64_t floats) { return std::exchange(at, at + round_up(floats, 16)); };
    const auto take_pairs = [&take](std::int64_t pairs) { return reinterpret_cast<Pair*>(take(pairs)); };
    const std::int64_t padded = padded_head(s), queries = round_up(s.queries, block_rows);
    dq = take(queries * padded);
    delta = take(queries);
    for (Pair** p : {&keys_t, &keys, &values_t}) *p = take_pairs(key_block * padded / 2);
    for (Pair** p : {&q, &q_t, &d_out, &d_out_t}) *p = take_pairs(query_block * padded / 2);
    for (Pair** p : {&probabilities, &d_scores_down, &d_scores}) *p = take_pairs(query_block * score_ld / 2);
    for (float** p : {&dk_t, &dv_t}) *p = take(padded * score_ld);
    for (float** p : {&shift, &row_delta}) *p = take(query_block);
    for (float** p : {&score, &d_probability}) *p = take(block_rows * block_columns);
  }
};

/// Probabilities and gradients of scaled scores of a block of 32 x 32, from its scores and the gradients of its
/// probabilities. Hidden keys get zeros in both.
template <bool all_seen>
HWY_INLINE void differentiate(const Block& b, std::int64_t r0, std::int64_t key, const Scratch& x) {
  const __m512 scale = _mm512_set1_ps(b.s.scale), scale2 = _mm512_set1_ps(b.s.scale * std::numbers::log2e_v<float>);
  for (std::int64_t i = 0; i < block_rows; i += 2) {
    __m512 p[2][2], ds[2][2];
    for (std::int64_t h = 0; h < 2; ++h) {
      const std::int64_t r = r0 + i + h;
      const KeyRange seen = all_seen ? KeyRange{} : b.visible(r, 1);
      const __m512 shift = _mm512_set1_ps(x.shift[r]), delta = _mm512_set1_ps(x.row_delta[r]);
      for (std::int64_t v = 0; v < 2; ++v) {
        const __mmask16 mask = all_seen ? 0xffff : lanes_in(seen, key + v * lanes);
        const std::int64_t at = (i + h) * block_columns + v * lanes;
        p[h][v] = exp2_or_zero(mask, _mm512_fmsub_ps(_mm512_loadu_ps(x.score + at), scale2, shift));
        ds[h][v] =
            _mm512_maskz_mul_ps(mask, p[h][v], _mm512_fmsub_ps(_mm512_loadu_ps(x.d_probability + at), scale, delta));
      }
      _mm512_storeu_si512(x.d_scores + (r * score_ld + key) / 2, pair_neighbours(ds[h][0], ds[h][1]));
    }
    const std::int64_t down = (r0 + i) / 2 * score_ld + key;
    for (std::int64_t v = 0; v < 2; ++v) {
      _mm512_storeu_si512(x.probabilities + down + v * lanes, pair_rows(p[0][v], p[1][v]));
      _mm512_storeu_si512(x.d_scores_down + down + v * lanes, pair_rows(ds[0][v], ds[1][v]));
    }
  }
}

void blocks_of_scores(const Block& b, const Scratch& x, std::int64_t padded) {
  const std::int64_t head_steps = padded / step_depth;
  for (std::int64_t key = 0; key < b.keys; key += block_columns)
    for (std::int64_t r = 0; r < b.rows; r += block_rows) {
      if (!b.sees(r, block_rows, key, block_columns)) continue;
      const std::int64_t left = r * padded / 2, right = key * padded / 2;
      multiply<false>({x.q + left, step_pairs, block_rows * step_pairs}, {x.keys_t + right}, head_steps, x.score,
                      block_columns);
      multiply<false>({x.d_out + left, step_pairs, block_rows * step_pairs}, {x.values_t + right}, head_steps,
                      x.d_probability, block_columns);
      const KeyRange first = b.visible(r, 1), last = b.visible(r + block_rows - 1, 1);
      if (last.first <= key && key + block_columns <= first.last && r + block_rows <= b.rows)
        differentiate<true>(b, r, key, x);
      else
        differentiate<false>(b, r, key, x);
    }
}

/// Adds to the transposed sums of 32 keys what they get from this block of queries.
void add_to_keys(const Block& b, std::int64_t key, const Scratch& x, std::int64_t padded) {
  const KeyRange seen = b.seeing(key, block_columns);
  if (seen.first >= seen.last) return;
  const std::int64_t first = seen.first / step_depth;
  const std::int64_t steps = (seen.last + step_depth - 1) / step_depth - first;
  constexpr std::int64_t block = block_rows * step_pairs;
  const std::int64_t query_steps = (b.rows + step_depth - 1) / step_depth;
  const std::int64_t right = first * step_pairs * score_ld + key;
  for (std::int64_t column = 0; column < padded; column += block_rows) {
    const std::int64_t left = (column / block_rows * query_steps + first) * block;
    multiply<true>({x.d_out_t + left, step_pairs, block}, {x.probabilities + right, score_ld}, steps,
                   x.dv_t + column * score_ld + key, score_ld);
    multiply<true>({x.q_t + left, step_pairs, block}, {x.d_scores_down + right, score_ld}, steps,
                   x.dk_t + column * score_ld + key, score_ld);
  }
}

void add_to_queries(const Block& b, const Scratch& x, std::int64_t padded) {
  const std::int64_t depth = round_up(b.keys, step_depth) / 2;
  for (std::int64_t r = 0; r < b.rows; r += block_rows) {
    const KeyRange seen = b.visible(r, block_rows);
    if (seen.first >= seen.last) continue;
    const std::int64_t first = seen.first / step_depth;
    const std::int64_t steps = (seen.last + step_depth - 1) / step_depth - first;
    const Left left{x.d_scores + r * score_ld / 2 + first * step_pairs, score_ld / 2, step_pairs};
    for (std::int64_t column = 0; column < padded; column += block_columns)
      multiply<true>(left, {x.keys + column * depth + first * step_pairs * panel_columns}, steps,
                     x.dq + (b.query0 + r) * padded + column, padded);
  }
}

/// out[key] = column `key` of transposed sums.
void transpose_sums(const float* sums, std::int64_t padded, std::int64_t keys, float* out) {
  for (std::int64_t key = 0; key < keys; key += lanes)
    for (std::int64_t column = 0; column < padded; column += lanes) {
      __m512i x[lanes];
      for (std::int64_t i = 0; i < lanes; ++i) x[i] = _mm512_loadu_si512(sums + (column + i) * score_ld + key);
      transpose(x);
      for (std::int64_t i = 0; i < std::min(lanes, keys - key); ++i)
        _mm512_storeu_si512(out + (key + i) * padded + column, x[i]);
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
  std::fill(x.dq, x.dq + round_up(s.queries, block_rows) * padded, 0.0f);
  const Tiles tiles;
  for (std::int64_t key0 = 0; key0 < s.keys; key0 += key_block) {
    const std::int64_t keys = std::min(key_block, s.keys - key0);
    if (!any_sees(s, key0, key0 + keys)) {
      for (float* sums : {dk, dv}) std::fill_n(sums + key0 * padded, keys * padded, 0.0f);
      continue;
    }
    pack_across(k.part(key0, keys), padded / 2, x.keys_t);
    pack_across(v.part(key0, keys), padded / 2, x.values_t);
    pack_down(k.part(key0, keys), round_up(keys, step_depth) / 2, x.keys);
    std::fill(x.dk_t, x.dk_t + padded * score_ld, 0.0f);
    std::fill(x.dv_t, x.dv_t + padded * score_ld, 0.0f);
    for (std::int64_t query0 = 0; query0 < s.queries; query0 += query_block) {
      const Block b{s, query0, std::min(query_block, s.queries - query0), key0, keys};
      const KeyRange seen = b.visible(0, b.rows);
      if (seen.first >= seen.last) continue;
      pack_left(q.part(query0, b.rows), x.q);
      pack_left(d_out.part(query0, b.rows), x.d_out);
      pack_left_transposed(q.part(query0, b.rows), x.q_t);
      pack_left_transposed(d_out.part(query0, b.rows), x.d_out_t);
      for (std::int64_t r = 0; r < round_up(b.rows, block_rows); ++r) {
        x.shift[r] = r < b.rows ? lse[query0 + r] * std::numbers::log2e_v<float> : 0;
        x.row_delta[r] = r < b.rows ? x.delta[query0 + r] : 0;
      }
      blocks_of_scores(b, x, padded);
      for (std::int64_t key = seen.first / block_columns * block_columns; key < seen.last; key += block_columns)
        add_to_keys(b, key, x, padded);
      add_to_queries(b, x, padded);
    }
    transpose_sums(x.dk_t, padded, keys, dk + key0 * padded);
    transpose_sums(x.dv_t, padded, keys, dv + key0 * padded);
  }
  for (std::int64_t i = 0; i < s.queries; ++i)
    narrow_row(x.dq + i * padded, 1.0f, dim, call.dq + (row0 + i) * s.q_stride + column);
}

}  // namespace sluice::kernels::amx
HWY_POP_ATTRIBUTES
