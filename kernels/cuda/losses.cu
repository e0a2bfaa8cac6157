#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/losses.h"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256;

/// One block: each thread adds every 256th loss, and then halves of the threads add those of the others.
__global__ void add_losses_kernel(const float* losses, std::int64_t rows, bool first, double* sum) {
  __shared__ double partial[threads];
  double mine = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += threads) mine += static_cast<double>(losses[i]);
  partial[threadIdx.x] = mine;
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = (first ? 0.0 : *sum) + partial[0];
}

}  // namespace

void add_losses(const float* losses, std::int64_t rows, bool first, double* sum, Stream& stream) {
  launch(stream, "add_losses", add_losses_kernel, dim3(1), dim3(threads), losses, rows, first, sum);
}

}  // namespace sluice::kernels::cuda
