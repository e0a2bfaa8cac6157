#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tree_sum.h"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256;
constexpr int levels = 16;

__device__ float rounded_as(float own, const float*) { return own; }
__device__ float rounded_as(float own, const bf16*) { return to_float(to_bf16(own)); }
__device__ float loaded(const float* from) { return *from; }
__device__ float loaded(const bf16* from) { return to_float(*from); }

/// A thread adds up an element. level[l] holds the sum of 2^l members whose neighbours are still to come.
template <class T>
__global__ void __launch_bounds__(threads)
    tree_sum_kernel(const float* own, const T* arrived, std::int64_t stride, int members, int own_member, float* out,
                    std::int64_t numel) {
  const int pairs = members & -members;  // that are added up in pairs
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    float level[levels + 1], total = 0;
    for (int m = 0; m < members; ++m) {
      const int within = m & (pairs - 1), other = m - (m > own_member ? 1 : 0);
      float sum = m == own_member ? rounded_as(own[i], arrived) : loaded(arrived + other * stride + i);
      bool waits = false;
#pragma unroll
      for (int l = 0; l <= levels; ++l) {
        if (waits) continue;
        waits = (within >> l & 1) == 0;
        if (waits)
          level[l] = sum;
        else
          sum = level[l] + sum;
      }
      if (within == pairs - 1) total = m < pairs ? sum : total + sum;
    }
    out[i] = total;
  }
}

template <class T>
void add_up(const float* own, const T* arrived, std::int64_t stride, int members, int own_member, float* out,
            std::int64_t numel, Stream& stream) {
  if (numel <= 0) return;
  launch(stream, "tree_sum", tree_sum_kernel<T>, dim3(some_blocks(stream, divide_up(numel, threads))), dim3(threads),
         own, arrived, stride, members, own_member, out, numel);
}

}  // namespace

void tree_sum(const float* own, const float* arrived, std::int64_t stride, int members, int own_member, float* out,
              std::int64_t numel, Stream& stream) {
  add_up(own, arrived, stride, members, own_member, out, numel, stream);
}

void tree_sum(const float* own, const bf16* arrived, std::int64_t stride, int members, int own_member, float* out,
              std::int64_t numel, Stream& stream) {
  add_up(own, arrived, stride, members, own_member, out, numel, stream);
}

}  // namespace sluice::kernels::cuda
