#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/cross_entropy_row.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Threads of a block that only passes over a row or over tokens: more blocks, since one thread's doubles are waited
/// for.
constexpr unsigned pass_threads = 256;

/// Of a token, over the columns of all members.
struct VocabularyTotal {
  float largest;
  double sum;  ///< of exp(x - largest)
  double hit;  ///< the target's logit - largest
};

/// Members in order, from the first on.
__device__ VocabularyTotal total_of(const VocabularyPart* parts, std::int64_t members, std::int64_t stride) {
  float largest = parts[0].largest;
  for (std::int64_t m = 1; m < members; ++m) largest = fmaxf(largest, parts[m * stride].largest);
  const auto shift = static_cast<double>(largest);
  double sum = parts[0].sum * exp(static_cast<double>(parts[0].largest) - shift);
  auto target = static_cast<double>(parts[0].target);
  for (std::int64_t m = 1; m < members; ++m) {
    const VocabularyPart part = parts[m * stride];
    sum += part.sum * exp(static_cast<double>(part.largest) - shift);
    target += static_cast<double>(part.target);
  }
  return {largest, sum, target - shift};
}

/// A member without columns may have no logits.
template <class Logit>
__device__ Logit* row_of(Logit* logits, std::int64_t ld, std::int64_t t, std::int64_t vocabulary) {
  return vocabulary > 0 ? logits + t * ld : nullptr;
}

__global__ void __launch_bounds__(most_threads)
    part_kernel(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                std::int64_t vocabulary, VocabularyPart* parts, bool aligned) {
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const std::int32_t target = targets[t];
    if (is_ignored(target)) {
      if (threadIdx.x == 0) parts[t] = {};
      continue;
    }
    const float* const x = row_of(logits, ld, t, vocabulary);
    // The next row's first barrier keeps apart what two rows write.
    const RowTotal total = row_total(x, vocabulary, aligned);
    if (threadIdx.x == 0) parts[t] = {total.sum, total.largest, target >= 0 ? x[target] : 0.0f};
  }
}

__global__ void __launch_bounds__(pass_threads)
    gradient_of_parts_kernel(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                             std::int64_t vocabulary, const VocabularyPart* parts, std::int64_t members,
                             std::int64_t stride, float grad_scale, float* loss, bool aligned) {
  __shared__ RowGradient gradient;
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float* const x = row_of(logits, ld, t, vocabulary);
    const std::int32_t target = targets[t];
    if (is_ignored(target)) {
      if (threadIdx.x == 0) loss[t] = 0;
      clear_row(x, vocabulary, aligned);
      continue;
    }
    if (threadIdx.x == 0) {
      const VocabularyTotal total = total_of(parts + t, members, stride);
      const double log_sum = log(total.sum);
      loss[t] = static_cast<float>(log_sum - total.hit);
      gradient = row_gradient(total.largest, total.sum, log_sum, total.hit, grad_scale);
    }
    __syncthreads();
    const RowGradient of_row = gradient;
    __syncthreads();  // all have read it before the next row's is written
    logits_to_gradient(x, of_row, target, vocabulary, aligned);
  }
}

__global__ void __launch_bounds__(pass_threads)
    loss_of_parts_kernel(const std::int32_t* targets, std::int64_t tokens, const VocabularyPart* parts,
                         std::int64_t members, std::int64_t stride, float* loss) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t t = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < tokens; t += step) {
    loss[t] = 0;
    if (is_ignored(targets[t])) continue;
    const VocabularyTotal total = total_of(parts + t, members, stride);
    loss[t] = static_cast<float>(log(total.sum) - total.hit);
  }
}

}  // namespace

void cross_entropy_part(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                        std::int64_t vocabulary, VocabularyPart* parts, Stream& stream) {
  if (tokens <= 0) return;
  // As many threads as cross_entropy_forward has, which say in what order a row is summed.
  launch(stream, "cross_entropy_part", part_kernel, dim3(some_blocks(stream, tokens)),
         dim3(row_threads(divide_up(vocabulary, logits_pack), most_threads)), logits, ld, targets, tokens, vocabulary,
         parts, packs_aligned<logits_pack>(logits, ld));
}

void cross_entropy_of_parts_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets,
                                             std::int64_t tokens, std::int64_t vocabulary, const VocabularyPart* parts,
                                             std::int64_t members, std::int64_t stride, float grad_scale, float* loss,
                                             Stream& stream) {
  if (tokens <= 0) return;
  launch(stream, "cross_entropy_of_parts_forward_backward", gradient_of_parts_kernel, dim3(some_blocks(stream, tokens)),
         dim3(row_threads(divide_up(vocabulary, logits_pack), pass_threads)), logits, ld, targets, tokens, vocabulary,
         parts, members, stride, grad_scale, loss, packs_aligned<logits_pack>(logits, ld));
}

void cross_entropy_of_parts_forward(const std::int32_t* targets, std::int64_t tokens, const VocabularyPart* parts,
                                    std::int64_t members, std::int64_t stride, float* loss, Stream& stream) {
  if (tokens <= 0) return;
  launch(stream, "cross_entropy_of_parts_forward", loss_of_parts_kernel,
         dim3(some_blocks(stream, divide_up(tokens, pass_threads))), dim3(pass_threads), targets, tokens, parts,
         members, stride, loss);
}

}  // namespace sluice::kernels::cuda
