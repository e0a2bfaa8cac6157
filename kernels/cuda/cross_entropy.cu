#include <cfloat>

#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr int n = pack_numel<float>;

/// Of a row: its largest element, and the sum of exp(x - largest).
struct RowTotal {
  float largest;
  double sum;
};

/// One pass over the row: each thread keeps the largest element it has seen and the sum of exponentials below it
/// (Milakov and Gimelshein, arXiv 1805.02867). Sums are in double: a vocabulary is long, and where one word is nearly
/// certain the others' share is what the gradient is made of. What is not a number gets into the sum, and infinity does
/// so as its own difference.
__device__ RowTotal row_total(const float* x, std::int64_t vocabulary, bool aligned) {
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

/// What every thread needs of a row, computed by one in double: quotients and logarithms of doubles are slow on many
/// devices.
struct RowGradient {
  float factor, of_target;
};

template <bool with_gradient>
__global__ void __launch_bounds__(most_threads)
    cross_entropy_kernel(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                         std::int64_t vocabulary, float grad_scale, float* loss, bool aligned) {
  __shared__ RowGradient gradient;
  const std::int64_t first = std::int64_t{threadIdx.x} * n, step = std::int64_t{blockDim.x} * n;
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float* const x = logits + t * ld;
    const std::int32_t target = targets[t];
    if (target < 0) {
      if (threadIdx.x == 0) loss[t] = 0;
      if constexpr (with_gradient)
        for (std::int64_t c = first; c < vocabulary; c += step)
          Pack<float, n>().store(x + c, part_of<n>(c, vocabulary, aligned));
      continue;
    }
    const RowTotal total = row_total(x, vocabulary, aligned);
    if (threadIdx.x == 0) {
      const double log_sum = log(total.sum);
      const double hit = static_cast<double>(x[target]) - static_cast<double>(total.largest);
      loss[t] = static_cast<float>(log_sum - hit);
      // 1 - p of the target is the sum over the others: exact also where p is close to 1.
      if constexpr (with_gradient)
        gradient = {static_cast<float>(static_cast<double>(grad_scale) / total.sum),
                    static_cast<float>(expm1(hit - log_sum) * static_cast<double>(grad_scale))};
    }
    // Without a gradient the next row's first barrier keeps apart what two rows write.
    if constexpr (with_gradient) {
      __syncthreads();
      const auto [factor, of_target] = gradient;
      for (std::int64_t c = first; c < vocabulary; c += step) {
        const Part part = part_of<n>(c, vocabulary, aligned);
        const Pack<float, n> v = Pack<float, n>::load(x + c, part);
        float d[n];
#pragma unroll
        for (int j = 0; j < n; ++j) d[j] = c + j == target ? of_target : expf(v[j] - total.largest) * factor;
        Pack<float, n>::of(d).store(x + c, part);
      }
    }
  }
}

template <bool with_gradient>
void cross_entropy(const char* name, float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                   std::int64_t vocabulary, float grad_scale, float* loss, Stream& stream) {
  if (tokens <= 0) return;
  launch(stream, name, cross_entropy_kernel<with_gradient>, dim3(some_blocks(stream, tokens)),
         dim3(row_threads(divide_up(vocabulary, n), most_threads)), logits, ld, targets, tokens, vocabulary, grad_scale,
         loss, packs_aligned<n>(logits, ld));
}

}  // namespace

void cross_entropy_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                                    std::int64_t vocabulary, float grad_scale, float* loss, Stream& stream) {
  cross_entropy<true>("cross_entropy_forward_backward", logits, ld, targets, tokens, vocabulary, grad_scale, loss,
                      stream);
}

void cross_entropy_forward(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                           std::int64_t vocabulary, float* loss, Stream& stream) {
  cross_entropy<false>("cross_entropy_forward", const_cast<float*>(logits), ld, targets, tokens, vocabulary, 1.0f, loss,
                       stream);
}

}  // namespace sluice::kernels::cuda
