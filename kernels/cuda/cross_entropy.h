// Softmax cross-entropy on one chunk of tokens, as kernels/cpu/cross_entropy.h has it, on device memory. The order of
// every sum follows from the vocabulary's size alone. Faster where rows begin at multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// logits: [tokens, vocabulary] fp32, row stride ld, replaced by their gradient times `grad_scale` (softmax - onehot).
/// targets: [tokens]; a negative target is ignored (zero loss, zero gradient). loss: [tokens], nats, not scaled.
void cross_entropy_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                                    std::int64_t vocabulary, float grad_scale, float* loss, Stream& stream);

/// loss only; logits are left alone.
void cross_entropy_forward(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                           std::int64_t vocabulary, float* loss, Stream& stream);

}  // namespace sluice::kernels::cuda
