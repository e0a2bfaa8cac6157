// Gradients of keys and values on tensor cores: a block owns keys of one head and sums over the heads of its group and
// the queries that see them, in order (FlashAttention-2: arXiv 2307.08691, algorithm 2, the part for dK and dV).
// Scores are computed transposed, keys by queries, so that their fragments are operands of the sums as they are.
#include "kernels/cuda/attention_call.cuh"
#include "kernels/cuda/attention_tile.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Two accumulators of D columns for each key: only with short rows does a warp have 32 of them.
template <int D, int warps_, int mt_, int nt_>
struct Keys {
  static constexpr int warps = warps_, threads = warps * static_cast<int>(warp_threads), mt = mt_, nt = nt_;
  static constexpr int keys = 16 * mt * warps, queries = 8 * nt;
  static constexpr int tile = Tile<D>::numel(queries), step = 2 * tile;
  /// Of a step: queries and gradients of the output, then what belongs to their rows.
  struct Rows {
    float lse[queries], delta[queries];
    std::int32_t position[queries];
  };
  static constexpr std::size_t shared_bytes = Tile<D>::bytes(2 * keys + 4 * queries) + 2 * sizeof(Rows);
};
template <int D>
using Roomy = std::conditional_t<D == 64, Keys<D, 4, 2, 4>, Keys<D, 8, 1, 8>>;
/// For devices with less than 128 KiB of shared memory.
template <int D>
using Small = Keys<D, 4, 1, 4>;

/// One step's part of a block's work.
struct Step {
  int head, query;
};

template <int D, class K>
__device__ void load_step(const AttentionCall<bf16>& call, const VisibleKeys& visible, int row, const Step& step,
                          uint4* tiles, typename K::Rows& rows) {
  load_rows<D, K::queries, K::threads>(tiles, call.queries_of(call.q, call.q_stride, row, step.head), call.q_stride,
                                       step.query, call.queries, call.dim, call.aligned);
  load_rows<D, K::queries, K::threads>(tiles + K::tile, call.queries_of(call.d_out, call.out_stride, row, step.head),
                                       call.out_stride, step.query, call.queries, call.dim, call.aligned);
  if (const int i = static_cast<int>(threadIdx.x); i < K::queries) {
    const int query = std::min(step.query + i, call.queries - 1);
    const std::int64_t at = call.rows_of(row, step.head) + query;
    copy_4_async(&rows.lse[i], call.lse + at, 4);
    copy_4_async(&rows.delta[i], call.delta + at, 4);
    if (visible.positions != nullptr) copy_4_async(&rows.position[i], visible.positions + query, 4);
  }
  commit_copies();
}

template <int D, class K>
__global__ void __launch_bounds__(K::threads) keys_kernel(AttentionCall<bf16> call) {
  auto* const k = reinterpret_cast<uint4*>(dynamic_shared());
  uint4 *const v = k + Tile<D>::numel(K::keys), *const steps = v + Tile<D>::numel(K::keys);
  auto* const rows = reinterpret_cast<typename K::Rows*>(steps + std::ptrdiff_t{2} * K::step);
  const AttentionBlock block = key_block(call, K::keys);
  const VisibleKeys visible = call.visible(block.row);
  const int end_key = std::min(block.begin + K::keys, call.keys);
  const QueryRange range = queries_that_see(call, visible, block.begin, end_key);
  load_rows<D, K::keys, K::threads>(k, call.keys_of(call.k, call.k_stride, block.row, block.head), call.k_stride,
                                    block.begin, call.keys, call.dim, call.aligned);
  load_rows<D, K::keys, K::threads>(v, call.keys_of(call.v, call.v_stride, block.row, block.head), call.v_stride,
                                    block.begin, call.keys, call.dim, call.aligned);

  const int row0 = 16 * K::mt * warp(), end_head = (block.head + 1) * call.group();
  const float scale_log2 = call.scale * log2_e;
  Fragments<K::mt, D / 8> dk, dv;
  clear<K::mt, D / 8>(dk);
  clear<K::mt, D / 8>(dv);
  Step step{range.first < range.end ? end_head - call.group() : end_head, range.first};
  if (step.head < end_head) load_step<D, K>(call, visible, block.row, step, steps, rows[0]);
  for (int turn = 0; step.head < end_head; turn ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this step's queries are there, and nobody needs those of the step before
    const int query0 = step.query;
    step.query += K::queries;
    if (step.query >= range.end) step = {step.head + 1, range.first};
    if (step.head < end_head)
      load_step<D, K>(call, visible, block.row, step, steps + std::ptrdiff_t{K::step} * (turn ^ 1), rows[turn ^ 1]);

    const uint4 *q = steps + std::ptrdiff_t{K::step} * turn, *d_out = q + K::tile;
    const typename K::Rows& row = rows[turn];
    const bool partial = visible.positions != nullptr || block.begin + K::keys - 1 > visible.last(query0) ||
                         query0 + K::queries > call.queries || visible.first(query0 + K::queries - 1) > block.begin;
    Fragments<K::mt, K::nt> p, ds;
    products<D, K::mt, K::nt>(p, k, row0, q);
#pragma unroll
    for (int n = 0; n < K::nt; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = fragment_column(n, i), query = query0 + column;
        const float lse = row.lse[column] * log2_e;
        int first = 0, last = 0x7fffffff;
        if (partial) {
          first = visible.first_at(query, visible.positions != nullptr ? row.position[column] : visible.place(query));
          last = query < call.queries ? visible.last(query) : -1;
        }
#pragma unroll
        for (int m = 0; m < K::mt; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& x = p[m][n][2 * half + i];
            const int key = block.begin + row0 + fragment_row(m, half);
            x = fast_exp2(__fmaf_rn(x, scale_log2, -lse));
            if (partial && (key < first || key > last)) x = 0;
          }
      }
    add_products<D, K::mt, K::nt>(dv, p, d_out);
    products<D, K::mt, K::nt>(ds, v, row0, d_out);
#pragma unroll
    for (int n = 0; n < K::nt; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float delta = row.delta[fragment_column(n, i % 2)];
#pragma unroll
        for (int m = 0; m < K::mt; ++m) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta);
      }
    add_products<D, K::mt, K::nt>(dk, ds, q);
  }

  commit_copies();  // keys before every window: no step has waited for them
  wait_for_copies<0>();
  float scale[K::mt][2], one[K::mt][2];
#pragma unroll
  for (int m = 0; m < K::mt; ++m) scale[m][0] = scale[m][1] = call.scale, one[m][0] = one[m][1] = 1;
  store_rows<D, K::mt>(dk, scale, call.keys_of(call.dk, call.k_stride, block.row, block.head), call.k_stride,
                       block.begin + row0, call.keys, call.dim, call.aligned);
  store_rows<D, K::mt>(dv, one, call.keys_of(call.dv, call.v_stride, block.row, block.head), call.v_stride,
                       block.begin + row0, call.keys, call.dim, call.aligned);
}

template <int D, class K>
void keys_pass(const AttentionCall<bf16>& call, Stream& stream) {
  launch_shared(stream, "attention_backward (keys and values)", keys_kernel<D, K>, dim3(call.key_blocks(K::keys)),
                dim3(K::threads), K::shared_bytes, call);
}
template <int D>
void keys_pass(const AttentionCall<bf16>& call, std::size_t shared_bytes, Stream& stream) {
  if constexpr (Roomy<D>::shared_bytes > (99 << 10))
    if (Roomy<D>::shared_bytes > shared_bytes) return keys_pass<D, Small<D>>(call, stream);
  keys_pass<D, Roomy<D>>(call, stream);
}

}  // namespace

void attention_keys_pass(const AttentionCall<bf16>& call, Stream& stream) {
  const std::size_t bytes = stream.shared_bytes_max();
  if (call.dim <= 64) return keys_pass<64>(call, bytes, stream);
  if (call.dim <= 80) return keys_pass<80>(call, bytes, stream);
  if (call.dim <= 96) return keys_pass<96>(call, bytes, stream);
  keys_pass<128>(call, bytes, stream);
}

}  // namespace sluice::kernels::cuda
