#include "kernels/cuda/attention.h"
#include "kernels/cuda/pack.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int merge_warps = 8, merge_numel = 4;

template <class T>
struct MergeCall {
  const T* part;
  const float* part_lse;
  float *sum, *lse;
  std::int64_t tokens, queries, heads, dim, stride;
  bool first, aligned;
};

/// sum = sum * kept + part * added and the log-sum-exp of both, for one head of one token: a warp's work.
template <class T>
__global__ void __launch_bounds__(merge_warps* warp_threads) merge_kernel(MergeCall<T> call) {
  const std::int64_t i = std::int64_t{blockIdx.x} * merge_warps + threadIdx.x / warp_threads;
  if (i >= call.tokens * call.heads) return;
  const std::int64_t token = i / call.heads, head = i % call.heads;
  const std::int64_t at = (token / call.queries * call.heads + head) * call.queries + token % call.queries;
  const int lane = static_cast<int>(threadIdx.x % warp_threads);
  float merged = call.part_lse[at], kept = 0, added = 1;
  if (!call.first) {
    if (merged == -INFINITY) return;
    // Exchanged, so that no lane writes it before all have read it.
    const float before = __shfl_sync(all_lanes, call.lse[at], 0), most = before > merged ? before : merged;
    kept = expf(before - most), added = expf(merged - most);
    const float total = kept + added;
    kept /= total, added /= total;
    merged = most + logf(total);
  }
  const T* part = call.part + token * call.stride + head * call.dim;
  float* sum = call.sum + i * call.dim;
  for (std::int64_t c = std::int64_t{lane} * merge_numel; c < call.dim; c += std::int64_t{warp_threads} * merge_numel) {
    const Part there = part_of<merge_numel>(c, call.dim, call.aligned);
    const auto x = Pack<T, merge_numel>::load(part + c, there);
    float v[merge_numel];
    if (call.first) {
#pragma unroll
      for (int j = 0; j < merge_numel; ++j) v[j] = x[j];
    } else {
      const auto before = Pack<float, merge_numel>::load(sum + c, there);
#pragma unroll
      for (int j = 0; j < merge_numel; ++j) v[j] = before[j] * kept + x[j] * added;
    }
    Pack<float, merge_numel>::of(v).store(sum + c, there);
  }
  if (lane == 0) call.lse[at] = merged;
}

}  // namespace

template <class T>
void attention_merge(const AttentionShape& s, const T* part, const float* part_lse, bool first, float* sum, float* lse,
                     Stream& stream) {
  const std::int64_t tokens = s.batch * s.queries, rows = tokens * s.heads;
  if (rows <= 0) return;
  const bool aligned = packs_aligned<merge_numel>(part, s.out_stride) && packs_aligned<merge_numel>(sum) &&
                       s.head_dim % merge_numel == 0;
  const MergeCall<T> call{part,    part_lse,   sum,          lse,   tokens, s.queries,
                          s.heads, s.head_dim, s.out_stride, first, aligned};
  launch(stream, "attention_merge", merge_kernel<T>, dim3(static_cast<unsigned>(divide_up(rows, merge_warps))),
         dim3(merge_warps * warp_threads), call);
}

template void attention_merge<float>(const AttentionShape&, const float*, const float*, bool, float*, float*, Stream&);
template void attention_merge<bf16>(const AttentionShape&, const bf16*, const float*, bool, float*, float*, Stream&);

}  // namespace sluice::kernels::cuda
