// Parts of attention on AMX tiles (internal to attention): as attention_bf16.h has them, in blocks of 32 x 32 scores.
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_layout.h"

namespace sluice::kernels::amx {

/// Fewer queries leave most of a tile empty.
inline bool pays_for(const AttentionShape& s) { return s.queries >= 16 && available(); }

void pack_key_block(const AttentionCall<bf16>& call, std::int64_t pair, std::int64_t block, float* packed_pair);

void query_block_forward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, std::int64_t query0,
                         float* packed_pair, float* scratch);

void head_backward(const AttentionCall<bf16>& call, std::int64_t batch, std::int64_t head, float* dk, float* dv,
                   float* scratch);

}  // namespace sluice::kernels::amx
