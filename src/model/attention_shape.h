// How the attention kernel is told about one chunk of sequences.
#pragma once

#include <cmath>

#include "kernels/cpu/attention.h"
#include "src/model/workspaces.h"

namespace sluice {

/// `positions`: of the chunk's tokens, or null.
inline kernels::AttentionShape attention_shape(const Dims& d, std::int64_t sequences,
                                               const std::int32_t* positions = nullptr) {
  kernels::AttentionShape s;
  s.batch = sequences;
  s.queries = s.keys = d.sequence;
  s.heads = d.heads;
  s.kv_heads = d.kv_heads;
  s.head_dim = d.head_dim;
  s.q_stride = s.k_stride = s.v_stride = d.qkv;
  s.out_stride = d.q;
  s.window = d.window;
  s.scale = 1.0f / std::sqrt(static_cast<float>(d.head_dim));
  s.positions = positions;
  return s;
}

/// The same of own heads of whole sequences, where ranks have slices of them.
inline kernels::AttentionShape whole_attention_shape(const Dims& d, std::int64_t sequences,
                                                     const std::int32_t* positions = nullptr) {
  kernels::AttentionShape s = attention_shape(d, sequences, positions);
  s.queries = s.keys = d.whole;
  s.heads = d.own_heads;
  s.kv_heads = d.own_kv_heads;
  s.q_stride = s.k_stride = s.v_stride = d.own_qkv;
  s.out_stride = d.own_q;
  return s;
}

/// In blocks, of a piece of a slice's queries and a piece of a block that is so many pieces before it. `positions`: of
/// the queries.
inline kernels::AttentionShape block_attention_shape(const Dims& d, std::int64_t pieces_before,
                                                     const std::int32_t* positions) {
  kernels::AttentionShape s = attention_shape(d, 1, positions);
  s.queries = s.keys = d.piece;
  s.q_stride = d.q;
  s.k_stride = s.v_stride = 2 * d.kv;
  s.shift = pieces_before * d.piece;
  return s;
}

}  // namespace sluice
