// Parts of attention on the CPU's bf16 units (internal to attention): products of bf16 with fp32 sums. Softmax is fp32;
// probabilities and gradients of scores are rounded to bf16 where they are multiplied.
#pragma once

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/bf16_pairs.h"

namespace sluice::kernels::bf16_units {

/// Keys and values of one block of a pair of (batch, kv head), to its place in `packed_pair`.
void pack_key_block(const AttentionCall<bf16>& call, std::int64_t pair, std::int64_t block, float* packed_pair);

/// out and lse of one block of queries; `scratch` is one thread's part of the workspace.
void query_block_forward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, std::int64_t query0,
                         float* packed_pair, float* scratch);

/// dq of one head; dk and dv: what it adds to them, [keys, head_dim] with rows padded_head apart.
void head_backward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, float* dk, float* dv,
                   float* scratch);

}  // namespace sluice::kernels::bf16_units
