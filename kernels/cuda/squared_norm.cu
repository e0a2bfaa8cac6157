// The order of sluice::add_squared_norm: within a block of 4096 elements, element i goes to partial sum i % 32, each of
// which a lane of a warp has, then the partial sums are added in order, then the blocks.
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/launch.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr std::int64_t norm_block = 4096;
constexpr unsigned threads = 256, warps = threads / warp_threads;

/// A warp sums up one block at a time. Squares of floats are exact in double.
__global__ void __launch_bounds__(threads) square_blocks_kernel(const float* x, std::int64_t numel, double* sums) {
  const unsigned lane = threadIdx.x % warp_threads;
  const std::int64_t blocks = divide_up(numel, norm_block);
  for (std::int64_t b = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads; b < blocks;
       b += std::int64_t{gridDim.x} * warps) {
    const std::int64_t begin = b * norm_block, end = numel < begin + norm_block ? numel : begin + norm_block;
    double partial = 0;
#pragma unroll 16
    for (std::int64_t i = begin + lane; i < end; i += warp_threads) {
      const double v = x[i];
      partial = __fma_rn(v, v, partial);
    }
    double sum = 0;
#pragma unroll
    for (int from = 0; from < static_cast<int>(warp_threads); ++from)
      sum = __dadd_rn(sum, __shfl_sync(all_lanes, partial, from));
    if (lane == 0) sums[b] = sum;
  }
}

/// One block: all threads bring the sums near, one of them adds.
__global__ void __launch_bounds__(most_threads)
    add_in_order_kernel(const double* sums, std::int64_t count, double* to) {
  __shared__ double near[2][most_threads];
  double total = *to;
  int turn = 0;
  for (std::int64_t begin = 0; begin < count; begin += most_threads, turn = 1 - turn) {
    if (begin + threadIdx.x < count) near[turn][threadIdx.x] = sums[begin + threadIdx.x];
    __syncthreads();  // those who come a turn later write the other half
    if (threadIdx.x > 0) continue;
    const int here = static_cast<int>(count - begin < most_threads ? count - begin : most_threads);
#pragma unroll 16
    for (int i = 0; i < here; ++i) total = __dadd_rn(total, near[turn][i]);
  }
  if (threadIdx.x == 0) *to = total;
}

}  // namespace

std::uint64_t squared_norm_workspace_bytes(std::int64_t numel) {
  return static_cast<std::uint64_t>(divide_up(numel, norm_block)) * sizeof(double);
}

void add_squared_norm(const float* x, std::int64_t numel, double* sum, double* workspace, Stream& stream) {
  if (numel <= 0) return;
  const std::int64_t blocks = divide_up(numel, norm_block);
  launch(stream, "squared_norm", square_blocks_kernel, dim3(some_blocks(stream, divide_up(blocks, warps))),
         dim3(threads), x, numel, workspace);
  launch(stream, "squared_norm (sum of blocks)", add_in_order_kernel, dim3(1), dim3(most_threads), workspace, blocks,
         sum);
}

}  // namespace sluice::kernels::cuda
