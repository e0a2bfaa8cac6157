#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_bf16_tile.h"

HWY_PUSH_ATTRIBUTES(SLUICE_AMX)
namespace sluice::kernels::amx {
namespace {

using namespace bf16_units;  // NOLINT(google-build-using-namespace): the other half of this code

constexpr std::int64_t key_block = forward_key_block;
constexpr std::int64_t score_ld = forward_key_block + score_padding, probability_ld = score_ld / 2;

/// One thread's part of the workspace, for one block of queries.
struct Scratch {
  float *output, *scores;
  float *sum, *maximum;  // of each row: sums so far in 16 lanes, and maximum of the scaled scores as exponents of 2
  Pair *queries, *probabilities;
  Scratch(float* at, std::int64_t padded)
      : output(at),
        scores(output + query_block * padded),
        sum(scores + query_block * score_ld),
        maximum(sum + query_block * lanes),
        queries(reinterpret_cast<Pair*>(maximum + query_block)),
        probabilities(queries + query_block * padded / 2) {}
};

/// Probabilities of row r, less what its running maximum takes off: pairs over the steps of keys that its rows need.
/// What the output and the sum hold so far is brought to the same maximum. `all_seen`: the row sees all of these keys.
template <bool all_seen>
HWY_INLINE void softmax_row(const KeyRange& steps, const KeyRange& visible, __m512 scale, std::int64_t r,
                            const Scratch& x, std::int64_t padded) {
  const auto mask = [&](std::int64_t j) { return all_seen ? __mmask16{0xffff} : lanes_in(visible, j); };
  const float* scores = x.scores + r * score_ld;
  Pair* probabilities = x.probabilities + r * probability_ld;
  __m512 largest[2] = {_mm512_set1_ps(x.maximum[r]), _mm512_set1_ps(x.maximum[r])};
  for (std::int64_t j = visible.first / step_depth * step_depth; j < visible.last; j += step_depth)
    for (int v = 0; v < 2; ++v) {
      const std::int64_t at = j + v * lanes;
      largest[v] =
          _mm512_mask_max_ps(largest[v], mask(at), _mm512_mul_ps(_mm512_loadu_ps(scores + at), scale), largest[v]);
    }
  const float now = _mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1]));
  const __m512 maximum = _mm512_set1_ps(now);
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (std::int64_t j = steps.first; j < steps.last; j += step_depth) {
    __m512 e[2];
    for (int v = 0; v < 2; ++v) {
      const std::int64_t at = j + v * lanes;
      e[v] = exp2_or_zero(mask(at), _mm512_fmsub_ps(_mm512_loadu_ps(scores + at), scale, maximum));
      sum[v] = _mm512_add_ps(sum[v], e[v]);
    }
    _mm512_storeu_si512(probabilities + j / 2, pair_neighbours(e[0], e[1]));
  }
  __m512 total = _mm512_add_ps(sum[0], sum[1]);
  if (now > x.maximum[r]) {
    const __m512 shrink = exp2_or_zero(0xffff, _mm512_sub_ps(_mm512_set1_ps(x.maximum[r]), maximum));
    total = _mm512_fmadd_ps(_mm512_loadu_ps(x.sum + r * lanes), shrink, total);
    float* output = x.output + r * padded;
    for (std::int64_t j = 0; j < padded; j += lanes)
      _mm512_storeu_ps(output + j, _mm512_mul_ps(_mm512_loadu_ps(output + j), shrink));
    x.maximum[r] = now;
  } else {
    total = _mm512_add_ps(_mm512_loadu_ps(x.sum + r * lanes), total);
  }
  _mm512_storeu_ps(x.sum + r * lanes, total);
}

void attend(const Block& b, const Pair* keys, const Pair* values, const Scratch& x, std::int64_t padded) {
  const std::int64_t head_steps = padded / step_depth, depth = round_up(b.keys, step_depth) / 2;
  const __m512 scale = _mm512_set1_ps(b.s.scale * std::numbers::log2e_v<float>);
  for (std::int64_t key = 0; key < b.keys; key += block_columns)
    for (std::int64_t r = 0; r < b.rows; r += block_rows)
      if (b.sees(r, block_rows, key, block_columns))
        multiply<false>({x.queries + r * padded / 2, step_pairs, block_rows * step_pairs}, {keys + key * padded / 2},
                        head_steps, x.scores + r * score_ld + key, score_ld);
  for (std::int64_t r0 = 0; r0 < b.rows; r0 += block_rows) {
    const KeyRange seen = b.visible(r0, block_rows);
    if (seen.first >= seen.last) continue;
    const KeyRange steps{seen.first / step_depth * step_depth, round_up(seen.last, step_depth)};
    for (std::int64_t r = r0; r < std::min(r0 + block_rows, b.rows); ++r) {
      const KeyRange visible = b.visible(r, 1);
      if (visible.first <= steps.first && steps.last <= visible.last)
        softmax_row<true>(steps, visible, scale, r, x, padded);
      else
        softmax_row<false>(steps, visible, scale, r, x, padded);
    }
    const Left left{x.probabilities + r0 * probability_ld + steps.first / 2, probability_ld, step_pairs};
    for (std::int64_t column = 0; column < padded; column += block_columns)
      multiply<true>(left, {values + column * depth + steps.first / 2 * panel_columns},
                     (steps.last - steps.first) / step_depth, x.output + r0 * padded + column, padded);
  }
}

}  // namespace

void pack_key_block(const AttentionCall<bf16>& call, std::int64_t pair, std::int64_t block, float* packed_pair) {
  const AttentionShape& s = call.shape;
  const PackedPair packed{packed_pair, padded_head(s)};
  const std::int64_t batch = pair / s.kv_heads, column = pair % s.kv_heads * s.head_dim;
  const std::int64_t key0 = block * key_block, count = std::min(key_block, s.keys - key0);
  const std::int64_t row0 = batch * s.keys + key0;
  pack_across({call.k + row0 * s.k_stride + column, s.k_stride, count, s.head_dim}, packed.padded / 2,
              packed.keys(block));
  pack_down({call.v + row0 * s.v_stride + column, s.v_stride, count, s.head_dim}, round_up(count, step_depth) / 2,
            packed.values(block));
}

void query_block_forward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, std::int64_t query0,
                         float* packed_pair, float* scratch) {
  const AttentionShape s = call.row(batch);
  const PackedPair packed{packed_pair, padded_head(s)};
  const Scratch x(scratch, padded_head(s));
  const std::int64_t rows = std::min(query_block, s.queries - query0), dim = s.head_dim, padded = packed.padded;
  const std::int64_t row0 = batch * s.queries + query0;
  pack_left({call.q + row0 * s.q_stride + head * dim, s.q_stride, rows, dim}, x.queries);
  std::fill(x.output, x.output + query_block * padded, 0.0f);
  std::fill(x.sum, x.sum + query_block * lanes, 0.0f);
  std::fill(x.maximum, x.maximum + query_block, std::numeric_limits<float>::lowest());
  const Tiles tiles;
  const KeyRange seen = visible_to(s, query0, query0 + rows);
  for (std::int64_t key0 = seen.first / key_block * key_block; key0 < seen.last; key0 += key_block) {
    const std::int64_t block = key0 / key_block;
    attend({s, query0, rows, key0, std::min(key_block, s.keys - key0)}, packed.keys(block), packed.values(block), x,
           padded);
  }
  write_queries(call, batch, head, query0, rows, x.output, x.sum, x.maximum);
}

}  // namespace sluice::kernels::amx
HWY_POP_ATTRIBUTES
