// Exact causal attention in blocks (FlashAttention: arXiv 2205.14135, 2307.08691), grouped queries, forward and
// backward. The score matrix never exists as a whole. Deterministic for one machine and thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "sluice/dtype.h"

namespace sluice::kernels {

/// q: [batch, queries, heads, head_dim] with row stride q_stride (elements between tokens); k, v: [batch, keys,
/// kv_heads, head_dim] with kv_stride. Query i stands at place i + offset() among the keys: it sees the keys up to
/// there. heads is a multiple of kv_heads.
struct AttentionShape {
  std::int64_t batch = 1, queries = 0, keys = 0, heads = 1, kv_heads = 1, head_dim = 64;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;  ///< elements between consecutive tokens
  std::int64_t window = 0;  ///< sliding window: a query sees at most its last `window` keys; 0 = all
  float scale = 1;          ///< of the scores, usually 1/sqrt(head_dim)
  /// [batch, queries], or null. Packed documents: how many tokens of a query's document are before it in its row, which
  /// are all that it sees beside itself. One more than the token before has, or 0 where a document begins. In the
  /// memory of q, k and v: a device's for its kernels (kernels/cuda/attention.h has the same shape).
  const std::int32_t* positions = nullptr;
  /// Place of query 0 among the keys; not set, the last query stands at the last key, and there are at least as many
  /// keys as queries. Set, queries and keys may be any two blocks of the same sequences (ring attention: arXiv
  /// 2310.01889): a place may be before all keys or behind them, and window and positions count from it. A query that
  /// sees none of these keys has out = 0, lse = -infinity and dq = 0; a key that nobody sees has dk = dv = 0.
  std::optional<std::int64_t> shift{};

  std::int64_t offset() const { return shift.value_or(keys - queries); }
};

std::uint64_t attention_workspace_bytes(const AttentionShape& shape, Dtype dtype);

/// out: like q with out_stride; lse: [batch, heads, queries] fp32, log of the sum of exponentials, kept for backward.
template <class T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* lse,
                       std::span<std::byte> workspace);

/// dq, dk, dv are set (not added to), laid out and strided like q, k, v. Where the keys are a block of more, `out` and
/// `lse` are those over all keys: this block's part of the gradients follows from them.
template <class T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* lse, T* dq, T* dk, T* dv, std::span<std::byte> workspace);

/// Joins attention of the same queries over two blocks of keys by their log-sum-exp. `part` and `part_lse` are what
/// attention_forward wrote for one block; `sum` [batch, queries, heads * head_dim] fp32 and `lse` [batch, heads,
/// queries] hold the blocks before it, and get the result over all of them. With `first` they are set and not read. Of
/// the shape, batch, queries, heads, head_dim and out_stride count. Bits depend on the order in which blocks are
/// merged, and not on threads.
template <class T>
void attention_merge(const AttentionShape& shape, const T* part, const float* part_lse, bool first, float* sum,
                     float* lse);

}  // namespace sluice::kernels
