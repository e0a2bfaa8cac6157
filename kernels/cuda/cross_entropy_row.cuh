// Passes over a row of logits by the threads of a block, shared by the cross-entropies.
#pragma once

#include <cfloat>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {

/// Neighbouring logits that a thread takes at once.
constexpr int logits_pack = pack_numel<float>;

/// Of a row: its largest element, and the sum of exp(x - largest).
struct RowTotal {
  float largest;
  double sum;
};

/// One pass over the row: each thread keeps the largest element it has seen and the sum of exponentials below it
/// (Milakov and Gimelshein, arXiv 1805.02867). Sums are in double: a vocabulary is long, and where one word is nearly
/// certain the others' share is what the gradient is made of. What is not a number gets into the sum, and infinity does
/// so as its own difference.
__device__ inline RowTotal row_total(const float* x, std::int64_t vocabulary, bool aligned) {
  constexpr int n = logits_pack;
  __shared__ float all_largest[warp_threads];
  __shared__ double all_sums[warp_threads];
  const unsigned lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
  const bool there = lane < blockDim.x / warp_threads;
  float largest = -FLT_MAX;
  double sum = 0;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < vocabulary; c += std::int64_t{blockDim.x} * n) {
    const Part part = part_of<n>(c, vocabulary, aligned);
    const Pack<float, n> v = Pack<float, n>::load(x + c, part);
    float most = largest;
#pragma unroll
    for (int j = 0; j < n; ++j)
      if (j < part.valid) most = fmaxf(most, v[j]);
    if (most > largest) sum *= static_cast<double>(expf(largest - most));
#pragma unroll
    for (int j = 0; j < n; ++j)
      if (j < part.valid) sum += static_cast<double>(expf(v[j] - most));
    largest = most;
  }
  const float warp_largest = warp_max(largest);
  if (lane == 0) all_largest[warp] = warp_largest;
  __syncthreads();
  const float row_largest = warp_max(there ? all_largest[lane] : -FLT_MAX);
  const double warp_total = warp_sum(sum * static_cast<double>(expf(largest - row_largest)));
  if (lane == 0) all_sums[warp] = warp_total;
  __syncthreads();
  return {row_largest, warp_sum(there ? all_sums[lane] : 0.0)};
}

/// What every thread needs of a row to make its gradient, computed by one in double: quotients and logarithms of
/// doubles are slow on many devices.
struct RowGradient {
  float largest;    ///< of the row: exponentials are of logits less that
  float factor;     ///< of exponentials
  float of_target;  ///< the target's gradient
};

/// `hit`: the target's logit less the largest.
__device__ inline RowGradient row_gradient(float largest, double sum, double log_sum, double hit, float grad_scale) {
  // 1 - p of the target is the sum over the others: exact also where p is close to 1.
  return {largest, static_cast<float>(static_cast<double>(grad_scale) / sum),
          static_cast<float>(expm1(hit - log_sum) * static_cast<double>(grad_scale))};
}

/// Logits become their gradient. A target that is no column of the row has none.
__device__ inline void logits_to_gradient(float* x, RowGradient g, std::int32_t target, std::int64_t vocabulary,
                                          bool aligned) {
  constexpr int n = logits_pack;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < vocabulary; c += std::int64_t{blockDim.x} * n) {
    const Part part = part_of<n>(c, vocabulary, aligned);
    const Pack<float, n> v = Pack<float, n>::load(x + c, part);
    float d[n];
#pragma unroll
    for (int j = 0; j < n; ++j) d[j] = c + j == target ? g.of_target : expf(v[j] - g.largest) * g.factor;
    Pack<float, n>::of(d).store(x + c, part);
  }
}

/// The gradient of a token that is ignored.
__device__ inline void clear_row(float* x, std::int64_t vocabulary, bool aligned) {
  constexpr int n = logits_pack;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < vocabulary; c += std::int64_t{blockDim.x} * n)
    Pack<float, n>().store(x + c, part_of<n>(c, vocabulary, aligned));
}

}  // namespace sluice::kernels::cuda
