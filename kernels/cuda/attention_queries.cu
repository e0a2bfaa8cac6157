// Gradients of queries on tensor cores: a block owns queries of one head, computes their scores again from the
// log-sum-exp, and sums over the keys that they see in order (FlashAttention-2: arXiv 2307.08691, algorithm 2, the part
// for dQ).
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Keys and values of two steps in shared memory: one in use, one on its way.
template <int D>
struct Queries {
  static constexpr int warps = 4, threads = warps * static_cast<int>(warp_threads), mt = 2, nt = D == 64 ? 8 : 4;
  static constexpr int queries = 16 * mt * warps, keys = 8 * nt;
  static constexpr std::size_t shared_bytes = Tile<D>::bytes(2 * queries + 4 * keys);
};

template <int D>
__global__ void __launch_bounds__(Queries<D>::threads) queries_kernel(AttentionCall<bf16> call) {
  using Q = Queries<D>;
  constexpr int tile = Tile<D>::numel(Q::keys), step = 2 * tile;
  auto* const q = reinterpret_cast<uint4*>(dynamic_shared());
  uint4 *const d_out = q + Tile<D>::numel(Q::queries), *const keys = d_out + Tile<D>::numel(Q::queries);
  const AttentionBlock block = query_block(call, Q::queries);
  const VisibleKeys visible = call.visible(block.row);
  const int kv_head = block.head / call.group();
  const bf16* k_head = call.keys_of(call.k, call.k_stride, block.row, kv_head);
  const bf16* v_head = call.keys_of(call.v, call.v_stride, block.row, kv_head);
  const auto load_keys = [&](int turn, int begin) {
    uint4* k = keys + std::ptrdiff_t{step} * turn;
    load_rows<D, Q::keys, Q::threads>(k, k_head, call.k_stride, begin, call.keys, call.dim, call.aligned);
    load_rows<D, Q::keys, Q::threads>(k + tile, v_head, call.v_stride, begin, call.keys, call.dim, call.aligned);
    commit_copies();
  };

  const int last_query = std::min(block.begin + Q::queries, call.queries) - 1;
  const int first_key = visible.first(block.begin), last_key = visible.last(last_query);
  load_rows<D, Q::queries, Q::threads>(q, call.queries_of(call.q, call.q_stride, block.row, block.head), call.q_stride,
                                       block.begin, call.queries, call.dim, call.aligned);
  load_rows<D, Q::queries, Q::threads>(d_out, call.queries_of(call.d_out, call.out_stride, block.row, block.head),
                                       call.out_stride, block.begin, call.queries, call.dim, call.aligned);
  load_keys(0, first_key);

  const int row0 = 16 * Q::mt * warp();
  // Rows beyond the last query have what it has, and are not written.
  const auto query_of = [&](int m, int half) {
    return std::min(block.begin + row0 + fragment_row(m, half), last_query);
  };
  float lse[Q::mt][2], delta[Q::mt][2];
#pragma unroll
  for (int m = 0; m < Q::mt; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = call.rows_of(block.row, block.head) + query_of(m, half);
      lse[m][half] = call.lse[at] * log2_e;
      delta[m][half] = call.delta[at];
    }
  const int all_from = visible.first(last_query), all_to = visible.last(block.begin);  // keys that all of them see

  Fragments<Q::mt, D / 8> dq;
  clear<Q::mt, D / 8>(dq);
  const float scale_log2 = call.scale * log2_e;
  int turn = 0;
  for (int key = first_key; key <= last_key; key += Q::keys, turn ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this step's keys are there, and nobody needs those of the step before
    if (key + Q::keys <= last_key) load_keys(turn ^ 1, key + Q::keys);
    const uint4 *k = keys + std::ptrdiff_t{step} * turn, *v = k + tile;
    Fragments<Q::mt, Q::nt> s, ds;
    products<D, Q::mt, Q::nt>(s, q, row0, k);
    products<D, Q::mt, Q::nt>(ds, d_out, row0, v);
#pragma unroll
    for (int m = 0; m < Q::mt; ++m)
#pragma unroll
      for (int n = 0; n < Q::nt; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = fast_exp2(__fmaf_rn(s[m][n][i], scale_log2, -lse[m][i / 2]));
          ds[m][n][i] = p * (ds[m][n][i] - delta[m][i / 2]);
        }
    if (key < all_from || key + Q::keys - 1 > all_to) {
#pragma unroll
      for (int m = 0; m < Q::mt; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = query_of(m, half), first = visible.first(query) - key, last = visible.last(query) - key;
#pragma unroll
          for (int n = 0; n < Q::nt; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (fragment_column(n, i) < first || fragment_column(n, i) > last) ds[m][n][2 * half + i] = 0;
        }
    }
    add_products<D, Q::mt, Q::nt>(dq, ds, k);
  }

  wait_for_copies<0>();  // queries that see no key: no step has waited for them
  float factor[Q::mt][2];
#pragma unroll
  for (int m = 0; m < Q::mt; ++m) factor[m][0] = factor[m][1] = call.scale;
  store_rows<D, Q::mt>(dq, factor, call.queries_of(call.dq, call.q_stride, block.row, block.head), call.q_stride,
                       block.begin + row0, call.queries, call.dim, call.aligned);
}

template <int D>
void queries_pass(const AttentionCall<bf16>& call, Stream& stream) {
  using Q = Queries<D>;
  launch_shared(stream, "attention_backward (queries)", queries_kernel<D>, dim3(call.query_blocks(Q::queries)),
                dim3(Q::threads), Q::shared_bytes, call);
}

}  // namespace

void attention_queries_pass(const AttentionCall<bf16>& call, Stream& stream) {
  if (call.dim <= 64) return queries_pass<64>(call, stream);
  if (call.dim <= 80) return queries_pass<80>(call, stream);
  if (call.dim <= 96) return queries_pass<96>(call, stream);
  queries_pass<128>(call, stream);
}

}  // namespace sluice::kernels::cuda
