// fp32 attention on the ordinary units, in the blocks and order of the bf16 kernels: four threads have a row of a
// block, each a quarter of its columns. For tests, small models and comparison; nothing here is tuned.
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/mma.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int block_rows = 32, row_threads_f32 = 4, threads = block_rows * row_threads_f32;
constexpr int columns = block_rows / row_threads_f32;  // of a block of scores that a thread has

/// Rows of D in shared memory; the odd distance between them spreads a column over all banks.
template <int D>
struct RowsF32 {
  static constexpr int numel = block_rows * (D + 1);
  float* data;
  __device__ float& at(int row, int column) const { return data[row * (D + 1) + column]; }

  /// Rows [begin, begin + block_rows) of a head, zeros from `end` and `dim` on.
  __device__ void load(const float* head, std::int64_t stride, int begin, int end, int dim) const {
    for (int i = static_cast<int>(threadIdx.x); i < block_rows * D; i += threads) {
      const int row = i / D, c = i % D;
      at(row, c) = begin + row < end && c < dim ? head[(begin + row) * stride + c] : 0;
    }
  }
};
/// A block of weights: scores, probabilities or their gradients.
using Weights = RowsF32<block_rows>;

__device__ int own_row() { return static_cast<int>(threadIdx.x) / row_threads_f32; }
__device__ int own_column(int i) { return static_cast<int>(threadIdx.x) % row_threads_f32 + row_threads_f32 * i; }

/// s[i] = own row of a times row own_column(i) of b
template <int D>
__device__ void products(float (&s)[columns], const RowsF32<D>& a, const RowsF32<D>& b) {
#pragma unroll
  for (float& x : s) x = 0;
#pragma unroll 4
  for (int d = 0; d < D; ++d) {
    const float x = a.at(own_row(), d);
#pragma unroll
    for (int i = 0; i < columns; ++i) s[i] = __fmaf_rn(x, b.at(own_column(i), d), s[i]);
  }
}

/// c[i] += own row of w times column own_column(i) of b. All threads call it: others have written parts of the row.
template <int D>
__device__ void add_products(float (&c)[D / row_threads_f32], const float (&w)[columns], const Weights& shared,
                             const RowsF32<D>& b) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < columns; ++i) shared.at(own_row(), own_column(i)) = w[i];
  __syncthreads();
  for (int j = 0; j < block_rows; ++j) {
    const float x = shared.at(own_row(), j);
#pragma unroll
    for (int i = 0; i < D / row_threads_f32; ++i) c[i] = __fmaf_rn(x, b.at(j, own_column(i)), c[i]);
  }
}

template <int D>
__device__ void store(const float (&c)[D / row_threads_f32], float factor, float* head, std::int64_t stride, int begin,
                      int end, int dim) {
  const int row = begin + own_row();
  if (row >= end) return;
#pragma unroll
  for (int i = 0; i < D / row_threads_f32; ++i)
    if (own_column(i) < dim) head[row * stride + own_column(i)] = c[i] * factor;
}

template <int D>
__global__ void __launch_bounds__(threads) forward_kernel(AttentionCall<float> call) {
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  constexpr int n = RowsF32<D>::numel;
  const RowsF32<D> q{shared}, k{shared + n}, v{shared + std::ptrdiff_t{2} * n};
  const Weights weights{shared + std::ptrdiff_t{3} * n};
  const AttentionBlock block = query_block(call, block_rows);
  const VisibleKeys visible = call.visible(block.row);
  const int kv_head = block.head / call.group();
  const int last_query = std::min(block.begin + block_rows, call.queries) - 1;
  const int query = std::min(block.begin + own_row(), last_query);
  const int first = visible.first(query), last = visible.last(query), end = visible.last(last_query);
  q.load(call.queries_of(call.q, call.q_stride, block.row, block.head), call.q_stride, block.begin, call.queries,
         call.dim);
  float out[D / row_threads_f32] = {}, largest = -INFINITY, sum = 0;
  for (int key = visible.first(block.begin); key <= end; key += block_rows) {
    __syncthreads();
    k.load(call.keys_of(call.k, call.k_stride, block.row, kv_head), call.k_stride, key, call.keys, call.dim);
    v.load(call.keys_of(call.v, call.v_stride, block.row, kv_head), call.v_stride, key, call.keys, call.dim);
    __syncthreads();
    float s[columns];
    products(s, q, k);
    float most = largest;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const int at = key + own_column(i);
      s[i] = at < first || at > last ? -INFINITY : s[i] * call.scale;
      most = fmaxf(most, s[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
    most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
    const float base = most == -INFINITY ? 0 : most, shrink = expf(largest - base);
    largest = most;
    sum *= shrink;
#pragma unroll
    for (float& x : s) sum += x = expf(x - base);
#pragma unroll
    for (float& x : out) x *= shrink;
    add_products<D>(out, s, weights, v);
  }
  sum += __shfl_xor_sync(all_lanes, sum, 1);
  sum += __shfl_xor_sync(all_lanes, sum, 2);
  if (own_column(0) == 0 && block.begin + own_row() <= last_query)
    call.lse[call.rows_of(block.row, block.head) + query] = largest + logf(sum);
  store<D>(out, first <= last ? 1 / sum : 0, call.queries_of(call.out, call.out_stride, block.row, block.head),
           call.out_stride, block.begin, call.queries, call.dim);
}

template <int D>
__global__ void __launch_bounds__(threads) queries_kernel(AttentionCall<float> call) {
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  constexpr int n = RowsF32<D>::numel;
  const RowsF32<D> q{shared}, d_out{shared + n}, k{shared + std::ptrdiff_t{2} * n}, v{shared + std::ptrdiff_t{3} * n};
  const Weights weights{shared + std::ptrdiff_t{4} * n};
  const AttentionBlock block = query_block(call, block_rows);
  const VisibleKeys visible = call.visible(block.row);
  const int kv_head = block.head / call.group();
  const int last_query = std::min(block.begin + block_rows, call.queries) - 1;
  const int query = std::min(block.begin + own_row(), last_query);
  const int first = visible.first(query), last = visible.last(query), end = visible.last(last_query);
  const float lse = call.lse[call.rows_of(block.row, block.head) + query];
  const float delta = call.delta[call.rows_of(block.row, block.head) + query];
  q.load(call.queries_of(call.q, call.q_stride, block.row, block.head), call.q_stride, block.begin, call.queries,
         call.dim);
  d_out.load(call.queries_of(call.d_out, call.out_stride, block.row, block.head), call.out_stride, block.begin,
             call.queries, call.dim);
  float dq[D / row_threads_f32] = {};
  for (int key = visible.first(block.begin); key <= end; key += block_rows) {
    __syncthreads();
    k.load(call.keys_of(call.k, call.k_stride, block.row, kv_head), call.k_stride, key, call.keys, call.dim);
    v.load(call.keys_of(call.v, call.v_stride, block.row, kv_head), call.v_stride, key, call.keys, call.dim);
    __syncthreads();
    float s[columns], ds[columns];
    products(s, q, k);
    products(ds, d_out, v);
#pragma unroll
    for (int i = 0; i < columns; ++i) {
      const int at = key + own_column(i);
      ds[i] = at < first || at > last ? 0 : expf(__fmaf_rn(s[i], call.scale, -lse)) * (ds[i] - delta);
    }
    add_products<D>(dq, ds, weights, k);
  }
  store<D>(dq, call.scale, call.queries_of(call.dq, call.q_stride, block.row, block.head), call.q_stride, block.begin,
           call.queries, call.dim);
}

template <int D>
__global__ void __launch_bounds__(threads) keys_kernel(AttentionCall<float> call) {
  auto* const shared = reinterpret_cast<float*>(dynamic_shared());
  constexpr int n = RowsF32<D>::numel;
  const RowsF32<D> k{shared}, v{shared + n}, q{shared + std::ptrdiff_t{2} * n}, d_out{shared + std::ptrdiff_t{3} * n};
  const Weights weights{shared + std::ptrdiff_t{4} * n};
  const AttentionBlock block = key_block(call, block_rows);
  const VisibleKeys visible = call.visible(block.row);
  const int key = block.begin + own_row();
  const QueryRange range = queries_that_see(call, visible, block.begin, std::min(block.begin + block_rows, call.keys));
  k.load(call.keys_of(call.k, call.k_stride, block.row, block.head), call.k_stride, block.begin, call.keys, call.dim);
  v.load(call.keys_of(call.v, call.v_stride, block.row, block.head), call.v_stride, block.begin, call.keys, call.dim);
  float dk[D / row_threads_f32] = {}, dv[D / row_threads_f32] = {};
  for (int head = block.head * call.group(); head < (block.head + 1) * call.group(); ++head)
    for (int query0 = range.first; query0 < range.end; query0 += block_rows) {
      __syncthreads();
      q.load(call.queries_of(call.q, call.q_stride, block.row, head), call.q_stride, query0, call.queries, call.dim);
      d_out.load(call.queries_of(call.d_out, call.out_stride, block.row, head), call.out_stride, query0, call.queries,
                 call.dim);
      __syncthreads();
      float p[columns], ds[columns];
      products(p, k, q);
      products(ds, v, d_out);
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        const int query = query0 + own_column(i);
        const bool seen = query < range.end && key >= visible.first(query) && key <= visible.last(query);
        const std::int64_t at = call.rows_of(block.row, head) + (seen ? query : 0);
        p[i] = seen ? expf(__fmaf_rn(p[i], call.scale, -call.lse[at])) : 0;
        ds[i] = seen ? p[i] * (ds[i] - call.delta[at]) : 0;
      }
      add_products<D>(dv, p, weights, d_out);
      add_products<D>(dk, ds, weights, q);
    }
  store<D>(dk, call.scale, call.keys_of(call.dk, call.k_stride, block.row, block.head), call.k_stride, block.begin,
           call.keys, call.dim);
  store<D>(dv, 1, call.keys_of(call.dv, call.v_stride, block.row, block.head), call.v_stride, block.begin, call.keys,
           call.dim);
}

/// Shared memory for so many arrays of rows, and the weights.
template <int D>
constexpr std::size_t shared_bytes(int arrays) {
  return static_cast<std::size_t>(arrays * RowsF32<D>::numel + Weights::numel) * sizeof(float);
}

template <int D>
void forward(const AttentionCall<float>& call, Stream& stream) {
  launch_shared(stream, "attention_forward", forward_kernel<D>, dim3(call.query_blocks(block_rows)), dim3(threads),
                shared_bytes<D>(3), call);
}
template <int D>
void queries_pass(const AttentionCall<float>& call, Stream& stream) {
  launch_shared(stream, "attention_backward (queries)", queries_kernel<D>, dim3(call.query_blocks(block_rows)),
                dim3(threads), shared_bytes<D>(4), call);
}
template <int D>
void keys_pass(const AttentionCall<float>& call, Stream& stream) {
  launch_shared(stream, "attention_backward (keys and values)", keys_kernel<D>, dim3(call.key_blocks(block_rows)),
                dim3(threads), shared_bytes<D>(4), call);
}

}  // namespace

void attention_forward_pass(const AttentionCall<float>& call, Stream& stream) {
  call.dim <= 64 ? forward<64>(call, stream) : forward<128>(call, stream);
}
void attention_queries_pass(const AttentionCall<float>& call, Stream& stream) {
  call.dim <= 64 ? queries_pass<64>(call, stream) : queries_pass<128>(call, stream);
}
void attention_keys_pass(const AttentionCall<float>& call, Stream& stream) {
  call.dim <= 64 ? keys_pass<64>(call, stream) : keys_pass<128>(call, stream);
}

}  // namespace sluice::kernels::cuda
