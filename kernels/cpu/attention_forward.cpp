#include <cmath>
#include <limits>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/gemm_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

#include "kernels/cpu/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

constexpr std::int64_t key_block = forward_key_block;
constexpr std::int64_t score_ld = forward_key_block + score_padding;

/// Packed keys and values of one pair of (batch, kv head).
struct PackedPair {
  float* data;
  std::int64_t padded;  // elements of a row
  float* keys(std::int64_t block) const { return data + block * key_block * 2 * padded; }
  float* values(std::int64_t block) const { return keys(block) + key_block * padded; }
};

struct Scratch {
  float *queries, *output, *maximum, *sum, *scores;
  Scratch(float* at, std::int64_t padded)
      : queries(at),
        output(queries + query_block * padded),
        maximum(output + query_block * padded),
        sum(maximum + query_block),
        scores(sum + query_block) {}
};

template <class T>
void pack_key_block(const AttentionCall<T>& call, std::int64_t pair, std::int64_t block, float* packed_pair) {
  const AttentionShape& s = call.shape;
  const PackedPair packed{packed_pair, padded_head(s)};
  const std::int64_t batch = pair / s.kv_heads, head = pair % s.kv_heads;
  const std::int64_t key0 = block * key_block, count = std::min(key_block, s.keys - key0);
  const PackSource<T> keys{call.k + batch * s.keys * s.k_stride + head * s.head_dim, s.k_stride, true, s.keys};
  const PackSource<T> values{call.v + batch * s.keys * s.v_stride + head * s.head_dim, s.v_stride, false, s.head_dim};
  pack_columns(keys, key0, count, 0, s.head_dim, packed.keys(block));
  pack_columns(values, 0, s.head_dim, key0, count, packed.values(block));
}

/// Scores of one row become exponentials less the row's running maximum; output and sum so far are rescaled to it.
HWY_INLINE void softmax_row(float* row, const KeyRange& block, const KeyRange& visible, float& maximum, float& sum,
                            float* output, std::int64_t head_dim) {
  const FloatTag d;
  if (visible.first >= visible.last) {
    hide_columns(row, block, {block.first, block.first}, 0.0f);
    return;
  }
  const KeyRange whole = hide_columns(row, block, visible, -std::numeric_limits<float>::max());
  FloatVec largest = hn::LoadU(d, row + whole.first);
  for (std::int64_t j = whole.first + lanes; j < whole.last; j += lanes)
    largest = hn::Max(largest, hn::LoadU(d, row + j));
  const float now = std::max(maximum, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const FloatVec shift = hn::Set(d, now);
  FloatVec total = hn::Zero(d);
  for (std::int64_t j = whole.first; j < whole.last; j += lanes) {
    const FloatVec e = exp_or_nan(d, hn::Sub(hn::LoadU(d, row + j), shift));
    hn::StoreU(e, d, row + j);
    total = hn::Add(total, e);
  }
  if (now != maximum) {
    const float factor = std::exp(maximum - now);
    sum *= factor;
    scale_row(output, factor, head_dim);
    maximum = now;
  }
  sum += hn::GetLane(hn::SumOfLanes(d, total));
}

template <class T>
void query_block_forward(const AttentionCall<T>& call, std::int64_t batch, std::int64_t head, std::int64_t query0,
                         float* packed_pair, float* scratch) {
  const AttentionShape s = call.row(batch);
  const PackedPair packed{packed_pair, padded_head(s)};
  const Scratch x(scratch, padded_head(s));
  const std::int64_t query1 = std::min(query0 + query_block, s.queries), rows = query1 - query0;
  const std::int64_t dim = s.head_dim, first_row = batch * s.queries + query0;
  widen_rows(call.q + first_row * s.q_stride + head * dim, s.q_stride, rows, dim, s.scale, x.queries);
  std::fill(x.output, x.output + query_block * dim, 0.0f);
  std::fill(x.maximum, x.maximum + rows, -std::numeric_limits<float>::infinity());
  std::fill(x.sum, x.sum + rows, 0.0f);
  const KeyRange seen = visible_to(s, query0, query1);
  for (std::int64_t key0 = seen.first / key_block * key_block; key0 < seen.last; key0 += key_block) {
    const std::int64_t key1 = std::min(key0 + key_block, s.keys), block = key0 / key_block;
    const KeyRange range = visible_in_block(s, query0, query1, key0, key1);
    multiply_columns({x.queries, dim, 1}, rows, {packed.keys(block), key1 - key0, dim}, range, x.scores, score_ld);
    for (std::int64_t r = 0; r < rows; ++r)
      softmax_row(x.scores + r * score_ld, range, visible_in_block(s, query0 + r, query0 + r + 1, key0, key1),
                  x.maximum[r], x.sum[r], x.output + r * dim, dim);
    multiply_add({x.scores + range.first, score_ld, 1}, rows, {packed.values(block), dim, key1 - key0}, range.first,
                 range.last - range.first, x.output, dim);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    narrow_scaled(x.output + r * dim, output_factor(s, query0 + r, x.sum[r]), dim,
                  call.out_mutable + (first_row + r) * s.out_stride + head * dim);
    call.lse_mutable[(batch * s.heads + head) * s.queries + query0 + r] = x.maximum[r] + std::log(x.sum[r]);
  }
}

/// pack(call, pair, key block, packed pair) for every block of a wave, then attend(call, batch, head, first query,
/// packed pair, scratch of this thread) for every block of queries.
template <class T, class Pack, class Attend>
void forward(const AttentionCall<T>& call, const Pack& pack, const Attend& attend) {
  const AttentionShape& s = call.shape;
  const AttentionWorkspace& w = call.layout;
  const std::int64_t pairs = s.batch * s.kv_heads, group = s.heads / s.kv_heads;
  const std::int64_t key_blocks = (s.keys + key_block - 1) / key_block;
  const std::int64_t query_blocks = (s.queries + query_block - 1) / query_block;
  with_team(call.threads, [&](const Team& team) {
    float* scratch = call.workspace + w.shared_floats() + team.thread() * w.thread_floats;
    const auto packed = [&](std::int64_t slot) { return call.workspace + slot * w.pair_floats; };
    for (std::int64_t first = 0; first < pairs; first += w.pairs) {
      const std::int64_t count = std::min(w.pairs, pairs - first);
      team.share(count * key_blocks, [&](std::int64_t i) {
        const std::int64_t slot = i / key_blocks, pair = first + slot, block = i % key_blocks;
        const std::int64_t key0 = block * key_block, key1 = std::min(key0 + key_block, s.keys);
        if (any_sees(call.row(pair / s.kv_heads), key0, key1)) pack(call, pair, block, packed(slot));
      });
      // Causal: the last blocks of queries see most keys, so they are handed out first.
      team.share(count * group * query_blocks, [&](std::int64_t i) {
        const std::int64_t slot = i % (count * group) / group, pair = first + slot;
        const std::int64_t head = pair % s.kv_heads * group + i % group;
        const std::int64_t block = query_blocks - 1 - i / (count * group);
        attend(call, pair / s.kv_heads, head, block * query_block, packed(slot), scratch);
      });
    }
  });
}

void forward_f32(const AttentionCall<float>& call) { forward(call, pack_key_block<float>, query_block_forward<float>); }
void forward_bf16(const AttentionCall<bf16>& call) {
#if HWY_TARGET <= HWY_AVX3
  if (amx::pays_for(call.shape)) return forward(call, amx::pack_key_block, amx::query_block_forward);
  if (bf16_units::available()) return forward(call, bf16_units::pack_key_block, bf16_units::query_block_forward);
#endif
  forward(call, pack_key_block<bf16>, query_block_forward<bf16>);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);

template <>
void attention_forward_blocks(const AttentionCall<float>& call) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(call);
}
template <>
void attention_forward_blocks(const AttentionCall<bf16>& call) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(call);
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
