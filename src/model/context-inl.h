// Attention where each rank has a slice of every sequence: context parallelism as DeepSpeed-Ulysses has it
// (arXiv 2309.14509).
//
// Everything else of a model is of each token alone. In attention tokens meet, and so ranks give each other what they
// have made of their slices, by heads: each gets some heads of whole sequences, and gives back what comes of them.
//
//   qkv    norm(x) -> q, k, v of the slice, by the rank that has the heads            all-to-all: own heads
//   core   attention of own heads over whole sequences                               all-to-all: all heads of the slice
//   out    x + what the last multiply makes of that
//
// and backwards the same way. Ranks that share a head of keys and values each get it; its gradients are added up where
// it was made, in the order of the ranks. What travels is [batch, context, sequence, columns]: of each sequence a block
// for, or from, each rank. The blocks of a sequence behind one another are all of it, so that core works on what has
// arrived as it is. In blocks (src/model/blocks-inl.h) only core and what travels are otherwise.
#pragma once

#include <algorithm>

#include "src/model/attention-inl.h"
#include "src/model/blocks-inl.h"

namespace sluice {

template <class T, class K>
struct ContextAttention {
  ContextAttention(const K& kernels_of_device, const SublayerArgs& a)
      : device(kernels_of_device), args(a), whole(kernels_of_device, a), d(whole.d) {}

  static const T* elements(const std::byte* at) { return reinterpret_cast<const T*>(at); }
  static T* elements(std::byte* at) { return reinterpret_cast<T*>(at); }

  /// Columns of a block: those of own_qkv, or of own_q.
  T* block(std::byte* base, std::int64_t sequence, std::int64_t rank, std::int64_t columns) const {
    return elements(base) + (sequence * d.context + rank) * d.sequence * columns;
  }
  void copy_rows(const T* from, std::int64_t from_width, T* to, std::int64_t to_width, std::int64_t columns,
                 std::int64_t rows) const {
    const std::int64_t element = sizeof(T);
    device.copy_rows(from, from_width * element, to, to_width * element, columns * element, rows);
  }
  /// Of a sequence's slice.
  void copy_columns(const T* from, std::int64_t from_width, T* to, std::int64_t to_width, std::int64_t columns) const {
    copy_rows(from, from_width, to, to_width, columns, d.sequence);
  }

  /// Rows of all heads to a block for each rank, and back. `first`: the sequence that the rows begin with.
  void give_heads(const T* rows, std::int64_t first, std::int64_t sequences) const {
    for (std::int64_t b = 0; b < sequences; ++b)
      for (std::int64_t r = 0; r < d.context; ++r)
        copy_columns(rows + b * d.sequence * d.q + r * d.own_q, d.q, block(args.leaving, first + b, r, d.own_q),
                     d.own_q, d.own_q);
  }
  void take_heads(std::int64_t first, std::int64_t sequences, T* rows) const {
    for (std::int64_t b = 0; b < sequences; ++b)
      for (std::int64_t r = 0; r < d.context; ++r)
        copy_columns(block(args.arrived, first + b, r, d.own_q), d.own_q, rows + b * d.sequence * d.q + r * d.own_q,
                     d.q, d.own_q);
  }
  /// The same of q, k and v. q and k lie in `turned`.
  void give_projections(const T* turned, const T* projected, std::int64_t first, std::int64_t sequences) const {
    for (std::int64_t b = 0; b < sequences; ++b)
      for (std::int64_t r = 0; r < d.context; ++r) {
        T* to = block(args.leaving, first + b, r, d.own_qkv);
        const std::int64_t row = b * d.sequence * d.qkv, shared = r / d.kv_copies * d.own_kv;
        copy_columns(turned + row + r * d.own_q, d.qkv, to, d.own_qkv, d.own_q);
        copy_columns(turned + row + d.q + shared, d.qkv, to + d.own_q, d.own_qkv, d.own_kv);
        copy_columns(projected + row + d.q + d.kv + shared, d.qkv, to + d.own_q + d.own_kv, d.own_qkv, d.own_kv);
      }
  }
  void take_gradients(const ContextSpace& space, std::int64_t first, std::int64_t sequences, T* d_qkv) const {
    for (std::int64_t b = 0; b < sequences; ++b) {
      T* rows = d_qkv + b * d.sequence * d.qkv;
      for (std::int64_t r = 0; r < d.context; ++r) {
        const T* from = block(args.arrived, first + b, r, d.own_qkv);
        copy_columns(from, d.own_qkv, rows + r * d.own_q, d.qkv, d.own_q);
        if (d.kv_copies == 1) take_keys(from + d.own_q, d.own_qkv, rows, r);
      }
      for (std::int64_t r = 0; d.kv_copies > 1 && r < d.context; r += d.kv_copies) {
        T *sum = elements(space.keys), *next = elements(space.other_keys);
        const std::int64_t columns = 2 * d.own_kv;
        for (std::int64_t copy = 0; copy < d.kv_copies; ++copy) {
          const T* from = block(args.arrived, first + b, r + copy, d.own_qkv);
          copy_columns(from + d.own_q, d.own_qkv, copy == 0 ? sum : next, columns, columns);
          if (copy > 0) device.add(static_cast<const T*>(sum), static_cast<const T*>(next), sum, d.sequence * columns);
        }
        take_keys(sum, columns, rows, r / d.kv_copies);
      }
    }
  }
  /// Keys and values beside each other to the place of those of the `group`th rank that has others.
  void take_keys(const T* from, std::int64_t width, T* rows, std::int64_t group) const {
    copy_columns(from, width, rows + d.q + group * d.own_kv, d.qkv, d.own_kv);
    copy_columns(from + d.own_kv, width, rows + d.q + d.kv + group * d.own_kv, d.qkv, d.own_kv);
  }

  /// What goes into the projections: gathered where sublayers are cut, else made here.
  const T* normed(const ContextSpace& space, std::int64_t token, std::int64_t rows) const {
    if (args.normed != nullptr) return elements(args.normed) + token * d.hidden;
    T* made = elements(space.narrow);
    whole.norm.forward(device, elements(args.x_in) + token * d.hidden, rows, made, space.statistics);
    return made;
  }

  /// By which the slice's tokens turn: in blocks made here, of these and no others.
  using Angles = typename AttentionSublayer<T, K>::Angles;
  Angles angles(const ContextSpace& space, std::int64_t token, std::int64_t rows) const {
    if (!d.in_blocks || d.gpt2) return whole.angles(token);
    device.rope_rows(args.rope.frequencies, d.head_dim / 2, args.rope.scale, token_positions(args, token), rows,
                     space.cos, space.sin);
    return {space.cos, space.sin, {rows}};
  }

  /// In blocks q is apart, and k and v lie beside each other.
  void keep_projections(const T* turned, const T* projected, std::int64_t token, std::int64_t rows) const {
    T *q = elements(args.mixed) + token * d.q, *block = elements(args.block) + token * 2 * d.kv;
    copy_rows(turned, d.qkv, q, d.q, d.q, rows);
    copy_rows(turned + d.q, d.qkv, block, 2 * d.kv, d.kv, rows);
    copy_rows(projected + d.q + d.kv, d.qkv, block + d.kv, 2 * d.kv, d.kv, rows);
  }
  void narrow_gradients(const ContextSpace& space, std::int64_t token, std::int64_t rows, T* d_qkv) const {
    T* narrow = elements(space.narrow);
    device.narrow(static_cast<const float*>(args.partial) + token * d.q, narrow, rows * d.q);
    copy_rows(narrow, d.q, d_qkv, d.qkv, d.q, rows);
    device.narrow(reinterpret_cast<const float*>(args.arrived) + token * 2 * d.kv, narrow, rows * 2 * d.kv);
    copy_rows(narrow, 2 * d.kv, d_qkv + d.q, d.qkv, 2 * d.kv, rows);
  }

  void qkv(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, false);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    T* projected = elements(space.wide);
    whole.project(normed(space, token, rows), rows, projected, space.scratch);
    const Angles by = angles(space, token, rows);
    T* turned = projected;
    if (d.qk_norm) {
      turned = elements(space.turned);
      if (args.saved != nullptr)
        device.copy(elements(args.saved) + token * d.qkv, projected,
                    static_cast<std::size_t>(rows * d.qkv) * sizeof(T));
      whole.turn(projected, rows, by, turned, space.head_rstd);
    } else {
      whole.rotate(projected, rows, by, false);
    }
    if (d.in_blocks)
      keep_projections(turned, projected, token, rows);
    else
      give_projections(turned, projected, first, sequences);
  }

  kernels::AttentionShape shape(std::int64_t first, std::int64_t sequences) const {
    const std::int32_t* positions = args.tokens.whole_positions;
    return whole_attention_shape(d, sequences, positions == nullptr ? nullptr : positions + first * d.whole);
  }
  void core(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, false);
    const T* q = elements(args.mixed) + first * d.whole * d.own_qkv;
    device.attention_forward(shape(first, sequences), q, q + d.own_q, q + d.own_q + d.own_kv,
                             elements(args.attended) + first * d.whole * d.own_q,
                             args.lse + first * d.whole * d.own_heads, space.scratch);
  }
  void core_backward(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, true);
    const std::int64_t at = first * d.whole, k = d.own_q, v = d.own_q + d.own_kv;
    const T* q = elements(args.mixed) + at * d.own_qkv;
    T* dq = elements(args.leaving) + at * d.own_qkv;
    device.attention_backward(
        shape(first, sequences), q, q + k, q + v, static_cast<const T*>(elements(args.attended)) + at * d.own_q,
        static_cast<const T*>(elements(args.arrived)) + at * d.own_q,
        static_cast<const float*>(args.lse) + at * d.own_heads, dq, dq + k, dq + v, space.scratch);
  }

  /// Attention's output of all heads: as it lies in blocks, else from what has arrived.
  const T* all_heads(const ContextSpace& space, std::int64_t first, std::int64_t sequences) const {
    if (d.in_blocks) return elements(args.arrived) + first * d.sequence * d.q;
    T* heads = elements(space.wide);
    take_heads(first, sequences, heads);
    return heads;
  }
  void out(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, false);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    whole.finish(all_heads(space, first, sequences), token, rows, space.scratch);
  }

  void out_backward(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, true);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const T* d_out = elements(args.d_out) + token * d.hidden;
    T* d_heads = d.in_blocks ? elements(args.leaving) + token * d.q : elements(space.narrow);
    whole.back.weight_gradient(device, all_heads(space, first, sequences), d_out, rows, args.accumulate || first > 0,
                               space.scratch);
    // Of a sublayer that is cut the residual's slice makes it.
    if (d.split == 1) bias_gradient(device, whole.back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    whole.back.input_gradient(device, d_out, rows, d_heads, space.scratch);
    if (!d.in_blocks) give_heads(d_heads, first, sequences);
  }

  /// Small gradients have been set by out_backward, and matrices that are not its own have not.
  void qkv_backward(std::int64_t first, std::int64_t sequences) const {
    const ContextSpace space(Carver(args.workspace.data()), d, true);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    T* d_qkv = elements(space.wide);
    if (d.in_blocks)
      narrow_gradients(space, token, rows, d_qkv);
    else
      take_gradients(space, first, sequences, d_qkv);
    const Angles by = angles(space, token, rows);
    whole.rotate(d_qkv, rows, by, true);
    const T* d_project = d_qkv;
    if (d.qk_norm) {
      const T* projected = elements(args.saved) + token * d.qkv;
      T* turned = elements(space.turned);
      whole.turn(projected, rows, by, turned, space.head_rstd);
      whole.norms_backward(projected, space.head_rstd, d_qkv, rows, turned, whole.q_norm.gradient,
                           whole.k_norm.gradient, space.scratch);
      whole.copy_values(d_qkv, turned, rows);
      d_project = turned;
    }
    whole.projection_gradients(normed(space, token, rows), d_project, rows, args.accumulate || first > 0,
                               space.scratch);
    if (args.normed != nullptr) {
      whole.into.input_gradient(device, d_project, d.qkv, rows,
                                kernels::Matrix{args.d_sum + token * d.hidden, Dtype::f32, d.hidden}, space.scratch);
      return;
    }
    T* d_normed = elements(space.narrow);
    whole.into.input_gradient(device, d_project, rows, d_normed, space.scratch);
    whole.through_norm(token, rows, space.statistics, d_normed, space.scratch);
  }

  const K& device;
  const SublayerArgs& args;
  AttentionSublayer<T, K> whole;  ///< of what it is made
  const Dims& d;
};

/// qkv, core, core_earlier, out, and their backward passes.
template <class T, class K>
void run_context(const K& device, OpKind op, const SublayerArgs& args) {
  const ContextAttention<T, K> attention(device, args);
  const Dims& d = attention.d;
  const bool is_core = is_core_of_slices(op), back = goes_back_in_slices(op);
  SLUICE_CHECK(ContextSpace(Carver(nullptr), d, back).bytes <= args.workspace.size(), "workspace of %zu bytes",
               args.workspace.size());
  if (op == OpKind::out_backward) open_gradient(device, args);
  if (is_core && d.in_blocks) return BlockCore<T, K>(device, args, d).run(op);
  const std::int64_t most = is_core ? d.whole_sequences : d.attention_chunk_sequences;
  for (std::int64_t b = 0; b < d.batch; b += most) {
    const std::int64_t sequences = std::min(most, d.batch - b);
    switch (op) {
      case OpKind::qkv: attention.qkv(b, sequences); break;
      case OpKind::core: attention.core(b, sequences); break;
      case OpKind::out: attention.out(b, sequences); break;
      case OpKind::out_backward: attention.out_backward(b, sequences); break;
      case OpKind::core_backward: attention.core_backward(b, sequences); break;
      default: attention.qkv_backward(b, sequences);
    }
  }
}

}  // namespace sluice
