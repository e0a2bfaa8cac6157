// Exact causal attention in blocks (FlashAttention: arXiv 2205.14135, 2307.08691), grouped queries, sliding windows,
// packed documents, forward and backward: kernels/cpu/attention.h on a device. The score matrix never exists as a
// whole, and blocks of it that causality, window or documents hide are not visited.
//
// bf16 runs on tensor cores (sm_80 and above) with fp32 sums: scores and softmax are fp32, probabilities and their
// gradients are rounded to bf16 as operands. fp32 runs on the ordinary units in fp32, which is correct and not fast.
// Every sum has one order that follows from the shape (there are no atomics), so that a kind of device always gives the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/attention.h"
#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// The CPU's: tokens, heads, strides, window, scale (positive). All pointers are the device's, `positions` too.
using kernels::AttentionShape;

/// Whether there are kernels for it: head_dim up to 128 (rows are padded on the chip to 64, 80, 96 or 128), fewer than
/// 2^30 queries, keys and places; without a shift at least as many keys as queries.
bool attention_supports(const AttentionShape& shape);

/// Of forward and backward together: a float for every row of the scores; no alignment beyond 16 bytes is needed.
std::uint64_t attention_workspace_bytes(const AttentionShape& shape, Dtype dtype);

/// out: like q with out_stride; lse: [batch, heads, queries] fp32, log of the sum of exponentials, kept for backward.
/// Fastest where addresses are multiples of 16 bytes and strides (and head_dim) multiples of 8 elements.
template <class T>
void attention_forward(const AttentionShape& shape, const T* q, const T* k, const T* v, T* out, float* lse,
                       std::span<std::byte> workspace, Stream& stream);

/// dq, dk, dv are set (not added to), laid out and strided like q, k, v; d_out like out. Scores are computed twice: by
/// blocks that own keys and sum dk and dv over queries (and the heads of a group, in order), and by blocks that own
/// queries and sum dq over keys. `out` and `lse` may be those over more keys, as on the CPU.
template <class T>
void attention_backward(const AttentionShape& shape, const T* q, const T* k, const T* v, const T* out, const T* d_out,
                        const float* lse, T* dq, T* dk, T* dv, std::span<std::byte> workspace, Stream& stream);

/// Joins attention over two blocks of keys, as kernels::attention_merge does (a warp has a head's row).
template <class T>
void attention_merge(const AttentionShape& shape, const T* part, const float* part_lse, bool first, float* sum,
                     float* lse, Stream& stream);

}  // namespace sluice::kernels::cuda
