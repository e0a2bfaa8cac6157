#include <limits>
#include <utility>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/gemm_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

#include "kernels/cpu/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

constexpr std::int64_t key_block = backward_key_block;
constexpr std::int64_t score_ld = backward_key_block + score_padding;

/// One thread's part of the workspace.
struct Scratch {
  float *dq, *delta, *keys_t, *keys, *values_t;  // dq and delta: all queries; packed: one block of keys
  float *q, *q_packed, *d_out, *d_out_packed;    // one block of queries
  float *probabilities, *d_scores;
  Scratch(float* at, const AttentionShape& s) {
    const auto take = [&at](std::int64_t floats) { return std::exchange(at, at + floats); };
    const std::int64_t head = padded_head(s), queries = round_up(s.queries, 16);
    dq = take(queries * head);
    delta = take(queries);
    for (float** p : {&keys_t, &keys, &values_t}) *p = take(key_block * head);
    for (float** p : {&q, &q_packed, &d_out, &d_out_packed}) *p = take(query_block * head);
    for (float** p : {&probabilities, &d_scores}) *p = take(query_block * score_ld);
  }
};

/// One head: where its rows begin and the sums of dk and dv over it ([keys, head_dim] each, rows padded_head apart).
template <class T>
struct Head {
  const T *q, *k, *v, *d_out;
  const float* lse;
  float *dk, *dv;
};

/// scores -> probabilities; gradient of the probabilities -> gradient of the scores. Hidden keys get zeros in both.
HWY_INLINE void softmax_row_backward(float* p, float* ds, const KeyRange& block, const KeyRange& visible, float lse,
                                     float delta) {
  const FloatTag d;
  if (visible.first >= visible.last) {
    hide_columns(p, block, {block.first, block.first}, 0.0f);
    hide_columns(ds, block, {block.first, block.first}, 0.0f);
    return;
  }
  const KeyRange whole = hide_columns(p, block, visible, -std::numeric_limits<float>::max());
  hide_columns(ds, block, visible, 0.0f);
  for (std::int64_t j = whole.first; j < whole.last; j += lanes) {
    const FloatVec e = exp_or_nan(d, hn::Sub(hn::LoadU(d, p + j), hn::Set(d, lse)));
    hn::StoreU(e, d, p + j);
    hn::StoreU(hn::Mul(e, hn::Sub(hn::LoadU(d, ds + j), hn::Set(d, delta))), d, ds + j);
  }
}

/// What one block of queries and one block of keys add to dq, dk and dv.
template <class T>
void block_backward(const AttentionShape& s, const Head<T>& h, std::int64_t query0, std::int64_t key0,
                    const Scratch& x) {
  const std::int64_t dim = s.head_dim;
  const std::int64_t query1 = std::min(query0 + query_block, s.queries), rows = query1 - query0;
  const std::int64_t key1 = std::min(key0 + key_block, s.keys), keys = key1 - key0;
  const KeyRange range = visible_in_block(s, query0, query1, key0, key1);
  if (range.first >= range.last) return;
  const std::int64_t seen = range.last - range.first;
  widen_rows(h.q + query0 * s.q_stride, s.q_stride, rows, dim, s.scale, x.q);
  widen_rows(h.d_out + query0 * s.out_stride, s.out_stride, rows, dim, 1.0f, x.d_out);
  pack_columns(PackSource<float>{x.q, dim, false, dim}, 0, dim, 0, rows, x.q_packed);
  pack_columns(PackSource<float>{x.d_out, dim, false, dim}, 0, dim, 0, rows, x.d_out_packed);

  multiply_columns({x.q, dim, 1}, rows, {x.keys_t, keys, dim}, range, x.probabilities, score_ld);
  multiply_columns({x.d_out, dim, 1}, rows, {x.values_t, keys, dim}, range, x.d_scores, score_ld);
  for (std::int64_t r = 0; r < rows; ++r)
    softmax_row_backward(x.probabilities + r * score_ld, x.d_scores + r * score_ld, range,
                         visible_in_block(s, query0 + r, query0 + r + 1, key0, key1), h.lse[query0 + r],
                         x.delta[query0 + r]);
  const std::int64_t padded = padded_head(s), first = (key0 + range.first) * padded;
  multiply_add({x.probabilities + range.first, 1, score_ld}, seen, {x.d_out_packed, dim, rows}, 0, rows, h.dv + first,
               padded);
  multiply_add({x.d_scores + range.first, 1, score_ld}, seen, {x.q_packed, dim, rows}, 0, rows, h.dk + first, padded);
  multiply_add({x.d_scores + range.first, score_ld, 1}, rows, {x.keys, dim, keys}, range.first, seen,
               x.dq + query0 * dim, dim);
}

template <class T>
void head_backward(const AttentionCall<T>& call, std::int64_t batch, std::int64_t head, float* dk, float* dv,
                   float* scratch) {
  const AttentionShape s = call.row(batch);
  const Scratch x(scratch, s);
  const std::int64_t dim = s.head_dim, row0 = batch * s.queries, key_row0 = batch * s.keys;
  const std::int64_t kv_offset = head / (s.heads / s.kv_heads) * dim;
  const Head<T> h{call.q + row0 * s.q_stride + head * dim,
                  call.k + key_row0 * s.k_stride + kv_offset,
                  call.v + key_row0 * s.v_stride + kv_offset,
                  call.d_out + row0 * s.out_stride + head * dim,
                  call.lse + (batch * s.heads + head) * s.queries,
                  dk,
                  dv};
  const T* out = call.out + row0 * s.out_stride + head * dim;
  for (std::int64_t i = 0; i < s.queries; ++i)
    x.delta[i] = dot(out + i * s.out_stride, h.d_out + i * s.out_stride, dim);
  std::fill(x.dq, x.dq + s.queries * dim, 0.0f);
  std::fill(dk, dk + s.keys * padded_head(s), 0.0f);
  std::fill(dv, dv + s.keys * padded_head(s), 0.0f);
  const PackSource<T> keys_t{h.k, s.k_stride, true, s.keys}, keys{h.k, s.k_stride, false, dim};
  const PackSource<T> values_t{h.v, s.v_stride, true, s.keys};
  for (std::int64_t key0 = 0; key0 < s.keys; key0 += key_block) {
    const std::int64_t count = std::min(key_block, s.keys - key0);
    if (!any_sees(s, key0, key0 + count)) continue;
    pack_columns(keys_t, key0, count, 0, dim, x.keys_t);
    pack_columns(values_t, key0, count, 0, dim, x.values_t);
    pack_columns(keys, 0, dim, key0, count, x.keys);
    for (std::int64_t query0 = 0; query0 < s.queries; query0 += query_block) block_backward(s, h, query0, key0, x);
  }
  T* dq = call.dq + row0 * s.q_stride + head * dim;
  for (std::int64_t i = 0; i < s.queries; ++i) narrow_scaled(x.dq + i * dim, s.scale, dim, dq + i * s.q_stride);
}

/// dst = sum over the group's heads, in order; sums of consecutive heads lie `head_step` floats apart.
template <class T>
HWY_INLINE void sum_heads(float* sums, std::int64_t heads, std::int64_t head_step, std::int64_t n, T* dst) {
  const FloatTag d;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    FloatVec total = hn::LoadU(d, sums + i);
    for (std::int64_t g = 1; g < heads; ++g) total = hn::Add(total, hn::LoadU(d, sums + g * head_step + i));
    store_narrowed(d, total, dst + i);
  }
  for (; i < n; ++i) {
    float total = sums[i];
    for (std::int64_t g = 1; g < heads; ++g) total += sums[g * head_step + i];
    store_one(total, dst + i);
  }
}

/// one_head(call, batch, head, dk, dv, scratch of this thread) sets dq, and the sums of dk and dv over one head.
template <class T, class OneHead>
void backward(const AttentionCall<T>& call, const OneHead& one_head) {
  const AttentionShape& s = call.shape;
  const AttentionWorkspace& w = call.layout;
  const std::int64_t pairs = s.batch * s.kv_heads, group = s.heads / s.kv_heads, dim = s.head_dim;
  const std::int64_t padded = padded_head(s), head_floats = s.keys * padded;
  constexpr std::int64_t key_strip = 64;
  const std::int64_t strips = (s.keys + key_strip - 1) / key_strip;
  with_team(call.threads, [&](const Team& team) {
    float* scratch = call.workspace + w.shared_floats() + team.thread() * w.thread_floats;
    for (std::int64_t first = 0; first < pairs; first += w.pairs) {
      const std::int64_t count = std::min(w.pairs, pairs - first);
      team.share(count * group, [&](std::int64_t i) {
        const std::int64_t pair = first + i / group;
        float* dk = call.workspace + i * 2 * head_floats;
        one_head(call, pair / s.kv_heads, pair % s.kv_heads * group + i % group, dk, dk + head_floats, scratch);
      });
      team.share(count * strips, [&](std::int64_t i) {
        const std::int64_t slot = i / strips, pair = first + slot, key0 = i % strips * key_strip;
        float* dk = call.workspace + slot * w.pair_floats;
        for (std::int64_t key = key0; key < std::min(key0 + key_strip, s.keys); ++key) {
          const std::int64_t row = pair / s.kv_heads * s.keys + key, column = pair % s.kv_heads * dim;
          sum_heads(dk + key * padded, group, 2 * head_floats, dim, call.dk + row * s.k_stride + column);
          sum_heads(dk + head_floats + key * padded, group, 2 * head_floats, dim, call.dv + row * s.v_stride + column);
        }
      });
    }
  });
}

void backward_f32(const AttentionCall<float>& call) { backward(call, head_backward<float>); }
void backward_bf16(const AttentionCall<bf16>& call) {
#if HWY_TARGET <= HWY_AVX3
  if (amx::pays_for(call.shape)) return backward(call, amx::head_backward);
  if (bf16_units::available()) return backward(call, bf16_units::head_backward);
#endif
  backward(call, head_backward<bf16>);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

template <>
void attention_backward_blocks(const AttentionCall<float>& call) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(call);
}
template <>
void attention_backward_blocks(const AttentionCall<bf16>& call) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(call);
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
