#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/cross_entropy_row.cuh"

namespace sluice::kernels::cuda {
namespace {

template <bool with_gradient>
__global__ void __launch_bounds__(most_threads)
    cross_entropy_kernel(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                         std::int64_t vocabulary, float grad_scale, float* loss, bool aligned) {
  __shared__ RowGradient gradient;
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float* const x = logits + t * ld;
    const std::int32_t target = targets[t];
    if (target < 0) {
      if (threadIdx.x == 0) loss[t] = 0;
      if constexpr (with_gradient) clear_row(x, vocabulary, aligned);
      continue;
    }
    const RowTotal total = row_total(x, vocabulary, aligned);
    if (threadIdx.x == 0) {
      const double log_sum = log(total.sum);
      const double hit = static_cast<double>(x[target]) - static_cast<double>(total.largest);
      loss[t] = static_cast<float>(log_sum - hit);
      if constexpr (with_gradient) gradient = row_gradient(total.largest, total.sum, log_sum, hit, grad_scale);
    }
    // Without a gradient the next row's first barrier keeps apart what two rows write.
    if constexpr (with_gradient) {
      __syncthreads();
      logits_to_gradient(x, gradient, target, vocabulary, aligned);
    }
  }
}

template <bool with_gradient>
void cross_entropy(const char* name, float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                   std::int64_t vocabulary, float grad_scale, float* loss, Stream& stream) {
  if (tokens <= 0) return;
  launch(stream, name, cross_entropy_kernel<with_gradient>, dim3(some_blocks(stream, tokens)),
         dim3(row_threads(divide_up(vocabulary, logits_pack), most_threads)), logits, ld, targets, tokens, vocabulary,
         grad_scale, loss, packs_aligned<logits_pack>(logits, ld));
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
