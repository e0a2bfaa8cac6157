// What the kernels of attention share: a call's arguments, and which keys a query sees (internal to attention).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.cuh"

namespace sluice::kernels::cuda {

constexpr float log2_e = 1.44269504088896340736f;

/// Keys that a query of one row of the batch sees: [first, last], none if last is before first. Neither end goes down
/// from one query to the next, so that what several neighbours see is without gaps.
struct VisibleKeys {
  int offset, keys, window;  ///< place of query 0 among so many keys; 0 = all
  const std::int32_t* positions;

  __device__ int place(int query) const { return query + offset; }
  __device__ int last(int query) const { return std::min(place(query), keys - 1); }
  __device__ int first(int query) const {
    return first_at(query, positions != nullptr ? positions[query] : place(query));
  }
  /// The same where the query's position is known.
  __device__ int first_at(int query, int position) const {
    const int at = place(query), begin = position < at ? at - position : 0, slid = at - window + 1;
    return window > 0 && slid > begin ? slid : begin;
  }
  __device__ bool any(int query) const { return first(query) <= last(query); }
};

template <class T>
struct AttentionCall {
  const T *q, *k, *v, *d_out;
  T *out, *dq, *dk, *dv;  ///< backward reads out
  float* lse;             ///< backward reads it
  float* delta;           ///< [batch, heads, queries]: dot product of out and d_out
  const std::int32_t* positions;
  int batch, queries, keys, heads, kv_heads, dim, window, offset;
  std::int64_t q_stride, k_stride, v_stride, out_stride;
  float scale;
  bool aligned;  ///< rows of all heads begin at multiples of 16 bytes

  __host__ __device__ int group() const { return heads / kv_heads; }
  __device__ VisibleKeys visible(int row) const {
    return {offset, keys, window, positions == nullptr ? nullptr : positions + std::int64_t{row} * queries};
  }
  /// The first token of a head, of arrays like q, k, v and out.
  template <class U>
  __device__ U* queries_of(U* x, std::int64_t stride, int row, int head) const {
    return x + std::int64_t{row} * queries * stride + std::int64_t{head} * dim;
  }
  template <class U>
  __device__ U* keys_of(U* x, std::int64_t stride, int row, int kv_head) const {
    return x + std::int64_t{row} * keys * stride + std::int64_t{kv_head} * dim;
  }
  __device__ std::int64_t rows_of(int row, int head) const { return (std::int64_t{row} * heads + head) * queries; }

  unsigned query_blocks(int size) const {
    return static_cast<unsigned>(divide_up(queries, size) * std::int64_t{batch} * heads);
  }
  unsigned key_blocks(int size) const {
    return static_cast<unsigned>(divide_up(keys, size) * std::int64_t{batch} * kv_heads);
  }
};

/// Which part of a call a block works on. Heads change fastest; the blocks with the most to do come first: the last
/// queries, the first keys.
struct AttentionBlock {
  int row, head, begin;
};
template <class T>
__device__ AttentionBlock query_block(const AttentionCall<T>& call, int size) {
  const int pairs = call.batch * call.heads, pair = static_cast<int>(blockIdx.x % static_cast<unsigned>(pairs));
  const int number = static_cast<int>((gridDim.x - 1 - blockIdx.x) / static_cast<unsigned>(pairs));
  return {pair / call.heads, pair % call.heads, number * size};
}
template <class T>
__device__ AttentionBlock key_block(const AttentionCall<T>& call, int size) {
  const int pairs = call.batch * call.kv_heads, pair = static_cast<int>(blockIdx.x % static_cast<unsigned>(pairs));
  return {pair / call.kv_heads, pair % call.kv_heads,
          static_cast<int>(blockIdx.x / static_cast<unsigned>(pairs)) * size};
}

/// Queries that see any of the keys [begin, end): [first, end); none if end is not behind first.
struct QueryRange {
  int first, end;
};
template <class T>
__device__ QueryRange queries_that_see(const AttentionCall<T>& call, const VisibleKeys& visible, int begin, int end) {
  int low = begin > visible.offset ? begin - visible.offset : 0, high = call.queries;
  const int first = low;
  if (visible.window == 0 && visible.positions == nullptr) return {first, high};
  while (low < high) {  // the first query that sees none, since it begins behind them
    const int middle = low + (high - low) / 2;
    if (visible.first(middle) < end)
      low = middle + 1;
    else
      high = middle;
  }
  return {first, low};
}

/// bf16 on tensor cores, fp32 on the ordinary units. The backward passes read delta.
void attention_forward_pass(const AttentionCall<bf16>& call, Stream& stream);
void attention_forward_pass(const AttentionCall<float>& call, Stream& stream);
void attention_keys_pass(const AttentionCall<bf16>& call, Stream& stream);  ///< sets dk, dv
void attention_keys_pass(const AttentionCall<float>& call, Stream& stream);
void attention_queries_pass(const AttentionCall<bf16>& call, Stream& stream);  ///< sets dq
void attention_queries_pass(const AttentionCall<float>& call, Stream& stream);

}  // namespace sluice::kernels::cuda
