// Sums over the threads of a warp and of a block, in an order that does not change.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace sluice::kernels::cuda {

/// Every lane gets the same sum: partners add the same two numbers.
template <class T>
__device__ T warp_sum(T v) {
#pragma unroll
  for (int with = 16; with > 0; with /= 2) v += __shfl_xor_sync(all_lanes, v, with);
  return v;
}

__device__ inline float warp_max(float v) {
#pragma unroll
  for (int with = 16; with > 0; with /= 2) v = fmaxf(v, __shfl_xor_sync(all_lanes, v, with));
  return v;
}

/// Sums of `count` numbers over a one-dimensional block of whole warps, for every thread. All threads call it; `turn`
/// alternates between 0 and 1 from call to call, so that one barrier a call is enough: who writes a turn's partial sums
/// has passed the barrier of the call between, and so has everyone read those of the call before.
template <int count>
__device__ void block_sums(float (&v)[count], int turn) {
  __shared__ float partial[2][count][warp_threads];
  const unsigned lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
#pragma unroll
  for (int k = 0; k < count; ++k) {
    v[k] = warp_sum(v[k]);
    if (lane == 0) partial[turn][k][warp] = v[k];
  }
  __syncthreads();
  const bool there = lane < blockDim.x / warp_threads;
#pragma unroll
  for (int k = 0; k < count; ++k) v[k] = warp_sum(there ? partial[turn][k][lane] : 0.0f);
}

}  // namespace sluice::kernels::cuda
