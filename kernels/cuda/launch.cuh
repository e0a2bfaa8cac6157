// How kernels are launched, and how grids are sized.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

constexpr unsigned warp_threads = 32, most_threads = 1024;
constexpr unsigned all_lanes = 0xffffffffu;

__host__ __device__ constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Blocks that give every multiprocessor several turns; kernels stride over what is beyond them.
inline std::int64_t most_blocks(const Stream& stream) { return 32 * std::int64_t{stream.multiprocessors()}; }

inline unsigned some_blocks(const Stream& stream, std::int64_t wanted) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, most_blocks(stream)));
}

/// Threads for a row of `units` units of work: whole warps, at most `most`.
inline unsigned row_threads(std::int64_t units, unsigned most) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(divide_up(units, warp_threads) * warp_threads, warp_threads, most));
}

/// `name` is what errors call the kernel.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
            const Arguments&... arguments) {
  if (!stream.status()) return;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream.handle();
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  stream.launched(name);
  if (error != cudaSuccess) stream.fail(std::string("CUDA kernel ") + name + " was not launched", error);
}

}  // namespace sluice::kernels::cuda
