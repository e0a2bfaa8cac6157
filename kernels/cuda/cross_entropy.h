// Softmax cross-entropy on one chunk of tokens, as kernels/cpu/cross_entropy.h has it, on device memory. The order of
// every sum follows from the vocabulary's size alone. Faster where rows begin at multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "kernels/vocabulary_part.h"

namespace sluice::kernels::cuda {

/// logits: [tokens, vocabulary] fp32, row stride ld, replaced by their gradient times `grad_scale` (softmax - onehot).
/// targets: [tokens]; a negative target is ignored (zero loss, zero gradient). loss: [tokens], nats, not scaled.
void cross_entropy_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                                    std::int64_t vocabulary, float grad_scale, float* loss, Stream& stream);

/// loss only; logits are left alone.
void cross_entropy_forward(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                           std::int64_t vocabulary, float* loss, Stream& stream);

// ---- a vocabulary whose columns are split over members (tensor parallelism; as the vocabulary-parallel loss of
// Megatron-LM, arXiv 1909.08053): each member makes parts of its columns, all get the parts of all, and each makes the
// loss and the gradient of its columns. Targets are columns of the member, or target_elsewhere; other negative ones are
// ignored, by all members.
//
// Of a token, from the parts p[m] of its members:
//     largest = max over m of p[m].largest
//     sum     = sum over m, in order and in double, of p[m].sum * exp(p[m].largest - largest)
//     hit     = (sum over m of p[m].target) - largest, in double
//     loss    = log(sum) - hit
// So all members get the same bits of the loss, and one member alone gets those of the functions above, of loss and
// gradient.

/// parts: [tokens], of the member's columns. logits: [tokens, vocabulary] fp32, row stride ld, left alone. Sums have
/// the order of cross_entropy_forward. vocabulary may be 0, of a member without columns; logits may be null then.
void cross_entropy_part(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                        std::int64_t vocabulary, VocabularyPart* parts, Stream& stream);

/// The part of member m of token t is parts[m * stride + t]; members >= 1, this one among them. logits: of the member's
/// columns as in cross_entropy_part, replaced by their gradient times `grad_scale` (softmax over all members - onehot).
/// loss: [tokens], nats, not scaled. Ignored tokens have zero loss and zero gradient.
void cross_entropy_of_parts_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets,
                                             std::int64_t tokens, std::int64_t vocabulary, const VocabularyPart* parts,
                                             std::int64_t members, std::int64_t stride, float grad_scale, float* loss,
                                             Stream& stream);

/// loss only, to the same bits. Of targets only counts which are ignored.
void cross_entropy_of_parts_forward(const std::int32_t* targets, std::int64_t tokens, const VocabularyPart* parts,
                                    std::int64_t members, std::int64_t stride, float* loss, Stream& stream);

}  // namespace sluice::kernels::cuda
