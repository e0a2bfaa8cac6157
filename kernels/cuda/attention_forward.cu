// Output and log-sum-exp on tensor cores: a block owns queries of one head and walks over the keys that they see
// (FlashAttention-2: arXiv 2307.08691, algorithm 1).
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

/// A warp has 32 queries, so that what it reads of keys and values serves two instructions.
template <int D>
struct Forward {
  static constexpr int warps = 4, threads = warps * static_cast<int>(warp_threads), mt = 2, nt = 8;
  static constexpr int queries = 16 * mt * warps, keys = 8 * nt;
  static constexpr std::size_t shared_bytes = Tile<D>::bytes(queries + 2 * keys);
};

/// The largest score so far and the sum of exponentials relative to it, for the rows that a lane holds. The sums are of
/// this lane's columns until the end.
template <int mt>
struct Softmax {
  float largest[mt][2], sum[mt][2];

  __device__ Softmax() {
#pragma unroll
    for (int m = 0; m < mt; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) largest[m][half] = -INFINITY, sum[m][half] = 0;
  }

  /// Scores become exponentials; what was summed so far, `out` too, becomes relative to the new largest.
  template <int nt, int dt>
  __device__ void step(Fragments<mt, nt>& s, Fragments<mt, dt>& out, float scale_log2) {
#pragma unroll
    for (int m = 0; m < mt; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = largest[m][half];
#pragma unroll
        for (int n = 0; n < nt; ++n) most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
        const float base = most == -INFINITY ? 0 : most * scale_log2;  // nothing visible yet
        const float shrink = fast_exp2(__fmaf_rn(largest[m][half], scale_log2, -base));
        largest[m][half] = most;
        float total = sum[m][half] * shrink;
#pragma unroll
        for (int n = 0; n < nt; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[m][n][i] = fast_exp2(__fmaf_rn(s[m][n][i], scale_log2, -base));
            total += s[m][n][i];
          }
        sum[m][half] = total;
#pragma unroll
        for (int n = 0; n < dt; ++n) out[m][n][2 * half] *= shrink, out[m][n][2 * half + 1] *= shrink;
      }
  }
};

template <int D>
__global__ void __launch_bounds__(Forward<D>::threads) forward_kernel(AttentionCall<bf16> call) {
  using F = Forward<D>;
  auto* const q = reinterpret_cast<uint4*>(dynamic_shared());
  uint4 *const k = q + Tile<D>::numel(F::queries), *const v = k + Tile<D>::numel(F::keys);
  const AttentionBlock block = query_block(call, F::queries);
  const VisibleKeys visible = call.visible(block.row);
  const int kv_head = block.head / call.group();
  const bf16* k_head = call.keys_of(call.k, call.k_stride, block.row, kv_head);
  const bf16* v_head = call.keys_of(call.v, call.v_stride, block.row, kv_head);
  const auto load_keys = [&](uint4* tile, const bf16* head, std::int64_t stride, int begin) {
    load_rows<D, F::keys, F::threads>(tile, head, stride, begin, call.keys, call.dim, call.aligned);
    commit_copies();
  };

  const int last_query = std::min(block.begin + F::queries, call.queries) - 1;
  const int first_key = visible.first(block.begin), last_key = visible.last(last_query);
  if (first_key <= last_key) {
    load_rows<D, F::queries, F::threads>(q, call.queries_of(call.q, call.q_stride, block.row, block.head),
                                         call.q_stride, block.begin, call.queries, call.dim, call.aligned);
    load_keys(k, k_head, call.k_stride, first_key);
  }

  const int row0 = 16 * F::mt * warp();
  const int all_from = visible.first(last_query), all_to = visible.last(block.begin);  // keys that all of them see

  Fragments<F::mt, D / 8> out;
  clear<F::mt, D / 8>(out);
  Softmax<F::mt> softmax;
  const float scale_log2 = call.scale * log2_e;
  for (int key = first_key; key <= last_key; key += F::keys) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are there, and nobody needs the values before them any more
    load_keys(v, v_head, call.v_stride, key);
    Fragments<F::mt, F::nt> s;
    products<D, F::mt, F::nt>(s, q, row0, k);
    if (key < all_from || key + F::keys - 1 > all_to) {
#pragma unroll
      for (int m = 0; m < F::mt; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Rows beyond the last query see what it sees, and are not written.
          const int query = std::min(block.begin + row0 + fragment_row(m, half), last_query);
          const int first = visible.first(query) - key, last = visible.last(query) - key;
#pragma unroll
          for (int n = 0; n < F::nt; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              if (fragment_column(n, i) < first || fragment_column(n, i) > last) s[m][n][2 * half + i] = -INFINITY;
        }
    }
    wait_for_copies<0>();
    __syncthreads();  // the same with values and keys
    if (key + F::keys <= last_key) load_keys(k, k_head, call.k_stride, key + F::keys);
    softmax.template step<F::nt, D / 8>(s, out, scale_log2);
    add_products<D, F::mt, F::nt>(out, s, v);
  }

  float factor[F::mt][2];
#pragma unroll
  for (int m = 0; m < F::mt; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = softmax.sum[m][half];
      sum += __shfl_xor_sync(all_lanes, sum, 1);
      sum += __shfl_xor_sync(all_lanes, sum, 2);
      const int query = block.begin + row0 + fragment_row(m, half);
      factor[m][half] = call.visible(block.row).any(std::min(query, last_query)) ? 1 / sum : 0;
      if (lane() % 4 == 0 && query <= last_query)
        call.lse[call.rows_of(block.row, block.head) + query] =
            __fmaf_rn(softmax.largest[m][half], call.scale, logf(sum));
    }
  store_rows<D, F::mt>(out, factor, call.queries_of(call.out, call.out_stride, block.row, block.head), call.out_stride,
                       block.begin + row0, call.queries, call.dim, call.aligned);
}

template <int D>
void forward(const AttentionCall<bf16>& call, Stream& stream) {
  using F = Forward<D>;
  launch_shared(stream, "attention_forward", forward_kernel<D>, dim3(call.query_blocks(F::queries)), dim3(F::threads),
                F::shared_bytes, call);
}

}  // namespace

void attention_forward_pass(const AttentionCall<bf16>& call, Stream& stream) {
  if (call.dim <= 64) return forward<64>(call, stream);
  if (call.dim <= 80) return forward<80>(call, stream);
  if (call.dim <= 96) return forward<96>(call, stream);
  forward<128>(call, stream);
}

}  // namespace sluice::kernels::cuda
