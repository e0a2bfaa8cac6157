// The attention sublayer: grouped queries (arXiv 2305.13245), rotary positions (arXiv 2104.09864), causal.
#pragma once

#include <algorithm>
#include <utility>

#include "src/model/attention_shape.h"
#include "src/model/blocks.h"
#include "src/model/workspaces.h"

namespace sluice {

template <class T, class K>
struct AttentionSublayer {
  AttentionSublayer(const K& kernels_of_device, const SublayerArgs& a)
      : device(kernels_of_device), args(a), d(*a.model, a.shape, a.dtype, kernels_of_device.sizes()) {
    norm = norm_of<T>(a, d);
    back_bias = last_bias_of<T>(a, d);
    if (d.gpt2) {
      into = {weight<T>(a, "c_attn.weight"), d.hidden, d.qkv, true};
      back = {weight<T>(a, "c_proj.weight"), d.q, d.hidden, true};
      into_bias = weight<T>(a, "c_attn.bias");
      return;
    }
    check_fused(*a.unit, "q_proj.weight", "v_proj.weight", d.qkv * d.hidden);
    into = {weight<T>(a, "q_proj.weight"), d.hidden, d.qkv};
    back = {weight<T>(a, "o_proj.weight"), d.q, d.hidden};
    q_bias = weight<T>(a, "q_proj.bias");
    k_bias = weight<T>(a, "k_proj.bias");
    v_bias = weight<T>(a, "v_proj.bias");
    q_norm = weight<T>(a, "q_norm.weight");
    k_norm = weight<T>(a, "k_norm.weight");
    if (d.qk_norm && a.parameters == nullptr) {
      const AttentionDeferred deferred(Carver(a.deferred), d);
      q_norm.value = reinterpret_cast<const T*>(deferred.q_norm);
      k_norm.value = reinterpret_cast<const T*>(deferred.k_norm);
    }
    if (d.in_blocks) return;
    const auto positions = a.rope.numel / (d.head_dim / 2);
    SLUICE_CHECK(a.position0 + d.sequence <= positions, "position %lld of %lld",
                 static_cast<long long>(a.position0 + d.sequence), static_cast<long long>(positions));
  }

  /// Keys that the last query sees.
  std::int64_t keys() const { return args.kv_cache == nullptr ? d.sequence : args.position0 + d.sequence; }

  /// Rows of cosines and sines, and which of them tokens turn by.
  struct Angles {
    const float *cos, *sin;
    kernels::Positions rows;
  };
  /// Of tokens from `token` on, in the tables of all positions.
  Angles angles(std::int64_t token) const { return {args.rope.cos, args.rope.sin, token_positions(args, token)}; }

  void rotate(T* qkv, std::int64_t rows, const Angles& by, bool inverse) const {
    if (d.gpt2) return;
    device.rope(qkv, d.qkv, rows, by.rows, d.heads + d.kv_heads, d.head_dim, by.cos, by.sin, inverse);
  }

  kernels::AttentionShape shape_from(std::int64_t token, std::int64_t sequences) const {
    return attention_shape(d, sequences, token_positions(args, token).each);
  }

  kernels::HeadNorms<T> head_norms() const { return {q_norm.value, k_norm.value, d.heads, d.kv_heads, d.head_dim}; }

  /// qk_norm: turned = rope(norm of every head of q and k); head_rstd: [heads + kv_heads, rows].
  void turn(const T* qkv, std::int64_t rows, const Angles& by, T* turned, float* head_rstd) const {
    device.rmsnorm_heads_forward(head_norms(), qkv, d.qkv, args.model->config.norm_eps, rows, turned, head_rstd);
    rotate(turned, rows, by, false);
  }

  /// New keys and values go to the end of the cache; then k and v are all of it.
  kernels::AttentionShape append_to_cache(std::int64_t sequences, const T** k, const T** v) const {
    SLUICE_CHECK(d.batch == 1 && args.position0 + d.sequence <= args.kv_capacity, "cache of %lld positions",
                 static_cast<long long>(args.kv_capacity));
    T* k_cache = reinterpret_cast<T*>(args.kv_cache);
    T* v_cache = k_cache + args.kv_capacity * d.kv;
    const std::int64_t row_bytes = d.kv * std::int64_t{sizeof(T)}, stride_bytes = d.qkv * std::int64_t{sizeof(T)};
    for (const auto& [cache, rows] : {std::pair{k_cache, *k}, std::pair{v_cache, *v}})
      device.copy_rows(rows, stride_bytes, cache + args.position0 * d.kv, row_bytes, row_bytes, d.sequence);
    *k = k_cache;
    *v = v_cache;
    kernels::AttentionShape shape = attention_shape(d, sequences);
    shape.keys = keys();
    shape.k_stride = shape.v_stride = d.kv;
    return shape;
  }

  void project(const T* normed, std::int64_t rows, T* qkv, std::span<std::byte> scratch) const {
    into.forward(device, normed, rows, qkv, scratch);
    add_bias(device, into_bias, qkv, d.qkv, rows, d.qkv);
    add_bias(device, q_bias, qkv, d.qkv, rows, d.q);
    add_bias(device, k_bias, qkv + d.q, d.qkv, rows, d.kv);
    add_bias(device, v_bias, qkv + d.q + d.kv, d.qkv, rows, d.kv);
  }

  /// From attention's output of some tokens to the sublayer's, or to a part of the sum over ranks.
  void finish(const T* out, std::int64_t token, std::int64_t rows, std::span<std::byte> scratch) const {
    const std::int64_t at = token * d.hidden;
    if (args.sum != nullptr)
      return back.forward(device, out, rows, kernels::Matrix{args.sum + at, Dtype::f32, d.hidden}, scratch);
    T* x_out = reinterpret_cast<T*>(args.x_out) + at;
    back.forward(device, out, rows, x_out, scratch);
    add_bias(device, back_bias, x_out, d.hidden, rows, d.hidden);
    device.add(reinterpret_cast<const T*>(args.x_in) + at, x_out, x_out, rows * d.hidden);
  }

  /// q, k and v of a chunk as they are kept, from its normed input.
  void make_qkv(const T* normed, std::int64_t token, std::int64_t rows, T* qkv, std::span<std::byte> scratch) const {
    project(normed, rows, qkv, scratch);
    if (!d.qk_norm) rotate(qkv, rows, angles(token), false);
  }

  /// Attention's output and the log-sum-exp of its scores, from those.
  void make_core(const AttentionForwardSpace& space, T* qkv, std::int64_t first, std::int64_t sequences, T* out,
                 float* lse) const {
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    T* turned = qkv;
    if (d.qk_norm) {
      turned = reinterpret_cast<T*>(space.turned);
      turn(qkv, rows, angles(token), turned, space.head_rstd);
    }
    const T *k = turned + d.q, *v = qkv + d.q + d.kv;
    kernels::AttentionShape shape = shape_from(token, sequences);
    if (args.kv_cache != nullptr) shape = append_to_cache(sequences, &k, &v);
    device.attention_forward(shape, static_cast<const T*>(turned), k, v, out, lse, space.scratch);
  }

  /// From the normed input of a chunk to attention's output, which is returned, with what is kept on the way.
  const T* attend(const AttentionForwardSpace& space, const T* normed, std::int64_t first,
                  std::int64_t sequences) const {
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const Chunk c = chunk_of(space, token);
    make_qkv(normed, token, rows, c.qkv, space.scratch);
    make_core(space, c.qkv, first, sequences, c.out, c.lse);
    return c.out;
  }

  /// Where a chunk's q, k and v, attention's output and the log-sum-exp are: kept, or in the workspace.
  struct Chunk {
    T *qkv, *out;
    float* lse;
  };
  Chunk chunk_of(const AttentionForwardSpace& space, std::int64_t token) const {
    const AttentionSaved own(Carver(space.saved), d, d.attention_chunk_sequences);
    const AttentionSaved kept(args.saved, args.core, d, d.batch);
    Chunk c{reinterpret_cast<T*>(own.qkv), reinterpret_cast<T*>(own.out), own.lse};
    if (args.saved != nullptr) c.qkv = reinterpret_cast<T*>(kept.qkv) + token * d.qkv;
    if (args.core == nullptr) return c;
    c.out = reinterpret_cast<T*>(kept.out) + token * d.q;
    c.lse = kept.lse + token * d.heads;
    return c;
  }

  void qkv_again_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionForwardSpace space(Carver(args.workspace.data()), d, keys());
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence, at = token * d.hidden;
    const T* normed = reinterpret_cast<const T*>(args.normed) + at;
    if (args.normed == nullptr) {
      T* own = reinterpret_cast<T*>(space.normed);
      norm.forward(device, reinterpret_cast<const T*>(args.x_in) + at, rows, own, space.statistics);
      normed = own;
    }
    make_qkv(normed, token, rows, chunk_of(space, token).qkv, space.scratch);
  }

  void core_again_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionForwardSpace space(Carver(args.workspace.data()), d, keys());
    const Chunk c = chunk_of(space, first * d.sequence);
    make_core(space, c.qkv, first, sequences, c.out, c.lse);
  }

  void forward_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionForwardSpace space(Carver(args.workspace.data()), d, keys());
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const T* x = reinterpret_cast<const T*>(args.x_in) + token * d.hidden;
    T* normed = reinterpret_cast<T*>(space.normed);
    norm.forward(device, x, rows, normed, space.statistics);
    const T* out = attend(space, normed, first, sequences);
    if (args.x_out != nullptr) finish(out, token, rows, space.scratch);
  }

  void part_forward_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionForwardSpace space(Carver(args.workspace.data()), d, keys());
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const T* out = attend(space, reinterpret_cast<const T*>(args.normed) + token * d.hidden, first, sequences);
    if (args.sum != nullptr) finish(out, token, rows, space.scratch);
  }

  void part_backward_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionBackwardSpace space(Carver(args.workspace.data()), d);
    const AttentionSaved kept(args.saved, args.core, d, d.batch);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const bool accumulate = args.accumulate || first > 0;
    const T* normed = reinterpret_cast<const T*>(args.normed) + token * d.hidden;
    const T* out = reinterpret_cast<const T*>(kept.out) + token * d.q;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + token * d.hidden;
    T* narrow = reinterpret_cast<T*>(space.narrow);
    back.weight_gradient(device, out, d_out, rows, accumulate, space.scratch);
    back.input_gradient(device, d_out, rows, narrow, space.scratch);
    const T* d_project = project_backward(space, kept, token, sequences, narrow);
    projection_gradients(normed, d_project, rows, accumulate, space.scratch);
    into.input_gradient(device, d_project, d.qkv, rows,
                        kernels::Matrix{args.d_sum + token * d.hidden, Dtype::f32, d.hidden}, space.scratch);
  }

  /// From the gradient of attention's output that of the projections' outputs; returns where it lies.
  const T* project_backward(const AttentionBackwardSpace& space, const AttentionSaved& kept, std::int64_t token,
                            std::int64_t sequences, const T* d_attention) const {
    T* d_qkv = reinterpret_cast<T*>(space.d_qkv);
    // Columns of v in `turned` are free, and there q and k come to them.
    scores_backward(space, kept, token, sequences, d_attention, d_qkv,
                    (d.qk_norm ? reinterpret_cast<T*>(space.turned) : d_qkv) + d.q + d.kv);
    if (!d.qk_norm) return d_qkv;
    return heads_backward(space, kept, token, sequences * d.sequence, d_qkv, q_norm.gradient, k_norm.gradient);
  }

  /// From the gradient of attention's output those of q and k, in d_qkv, and of v, in rows as far apart. With qk_norm q
  /// and k are those behind the norm of heads, which `space` has afterwards.
  void scores_backward(const AttentionBackwardSpace& space, const AttentionSaved& kept, std::int64_t token,
                       std::int64_t sequences, const T* d_attention, T* d_qkv, T* dv) const {
    const std::int64_t rows = sequences * d.sequence, k = d.q, v = d.q + d.kv;
    const T* qkv = reinterpret_cast<const T*>(kept.qkv) + token * d.qkv;
    const T* out = reinterpret_cast<const T*>(kept.out) + token * d.q;
    const float* lse = kept.lse + token * d.heads;
    T* turned = reinterpret_cast<T*>(space.turned);
    if (d.qk_norm) turn(qkv, rows, angles(token), turned, space.head_rstd);
    const T* seen = d.qk_norm ? turned : qkv;
    device.attention_backward(shape_from(token, sequences), seen, seen + k, qkv + v, out, d_attention, lse, d_qkv,
                              d_qkv + k, dv, space.scratch);
    rotate(d_qkv, rows, angles(token), true);
  }

  /// qk_norm: from gradients behind the norm of heads those before it, in `turned`, whose columns of v stay as they
  /// are.
  const T* heads_backward(const AttentionBackwardSpace& space, const AttentionSaved& kept, std::int64_t token,
                          std::int64_t rows, const T* d_qkv, float* d_q_norm, float* d_k_norm) const {
    const T* qkv = reinterpret_cast<const T*>(kept.qkv) + token * d.qkv;
    T* turned = reinterpret_cast<T*>(space.turned);
    norms_backward(qkv, space.head_rstd, d_qkv, rows, turned, d_q_norm, d_k_norm, space.scratch);
    return turned;
  }
  void norms_backward(const T* qkv, const float* head_rstd, const T* d_turned, std::int64_t rows, T* d_qkv,
                      float* d_q_norm, float* d_k_norm, std::span<std::byte> scratch) const {
    device.rmsnorm_heads_backward(head_norms(), qkv, d.qkv, head_rstd, d_turned, rows, d_qkv, d_q_norm, d_k_norm,
                                  reinterpret_cast<float*>(scratch.data()));
  }
  void copy_values(const T* from, T* to, std::int64_t rows) const {
    const std::int64_t v = d.q + d.kv, element = sizeof(T);
    device.copy_rows(from + v, d.qkv * element, to + v, d.qkv * element, d.kv * element, rows);
  }

  void backward_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionBackwardSpace space(Carver(args.workspace.data()), d);
    const AttentionSaved kept(args.saved, args.core, d, d.batch);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const bool accumulate = args.accumulate || first > 0;
    const T* x = reinterpret_cast<const T*>(args.x_in) + token * d.hidden;
    const T* out = reinterpret_cast<const T*>(kept.out) + token * d.q;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + token * d.hidden;
    T* narrow = reinterpret_cast<T*>(space.narrow);
    back.weight_gradient(device, out, d_out, rows, accumulate, space.scratch);
    bias_gradient(device, back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    back.input_gradient(device, d_out, rows, narrow, space.scratch);
    const T* d_project = project_backward(space, kept, token, sequences, narrow);
    norm.forward(device, x, rows, narrow, space.statistics);
    projection_gradients(narrow, d_project, rows, accumulate, space.scratch);
    into.input_gradient(device, d_project, rows, narrow, space.scratch);
    through_norm(token, rows, space.statistics, narrow, space.scratch);
  }

  void projection_gradients(const T* normed, const T* d_project, std::int64_t rows, bool accumulate,
                            std::span<std::byte> scratch) const {
    into.weight_gradient(device, normed, d_project, rows, accumulate, scratch);
    bias_gradient(device, into_bias, d_project, d.qkv, rows, d.qkv, scratch);
    bias_gradient(device, q_bias, d_project, d.qkv, rows, d.q, scratch);
    bias_gradient(device, k_bias, d_project + d.q, d.qkv, rows, d.kv, scratch);
    bias_gradient(device, v_bias, d_project + d.q + d.kv, d.qkv, rows, d.kv, scratch);
  }

  /// The gradient of x, of what comes through the norm, whose statistics are there, and of the residual.
  void through_norm(std::int64_t token, std::int64_t rows, const float* statistics, const T* d_normed,
                    std::span<std::byte> scratch) const {
    const std::int64_t at = token * d.hidden;
    T* d_in = reinterpret_cast<T*>(args.d_in) + at;
    device.copy(d_in, reinterpret_cast<const T*>(args.d_out) + at,
                static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    norm.backward(device, reinterpret_cast<const T*>(args.x_in) + at, statistics, d_normed, rows, d_in, true, scratch);
  }

  void backward_input_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionBackwardSpace space(Carver(args.workspace.data()), d);
    const AttentionSaved kept(args.saved, args.core, d, d.batch);
    const AttentionDeferred deferred(Carver(args.deferred), d);
    float* unwanted = reinterpret_cast<float*>(args.workspace.data() + space.bytes);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const T* x = reinterpret_cast<const T*>(args.x_in) + token * d.hidden;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + token * d.hidden;
    T* d_in = reinterpret_cast<T*>(args.d_in) + token * d.hidden;
    T* narrow = reinterpret_cast<T*>(space.narrow);
    T* d_qkv = reinterpret_cast<T*>(deferred.d_qkv) + token * d.qkv;
    T* d_normed = reinterpret_cast<T*>(deferred.d_normed) + token * d.hidden;
    back.input_gradient(device, d_out, rows, narrow, space.scratch);
    scores_backward(space, kept, token, sequences, narrow, d_qkv, d_qkv + d.q + d.kv);
    const T* d_project = d_qkv;
    if (d.qk_norm) {
      d_project = heads_backward(space, kept, token, rows, d_qkv, unwanted, unwanted + d.head_dim);
      copy_values(d_qkv, reinterpret_cast<T*>(space.turned), rows);
    }
    into.input_gradient(device, d_project, rows, d_normed, space.scratch);
    norm.forward(device, x, rows, narrow, space.statistics);
    device.copy(d_in, d_out, static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    without_gradients(norm, unwanted).backward(device, x, space.statistics, d_normed, rows, d_in, true, space.scratch);
    if (first > 0) return;
    defer_norm(device, norm, deferred.norm);
    if (!d.qk_norm) return;
    const std::size_t bytes = static_cast<std::size_t>(d.head_dim) * sizeof(T);
    device.copy(deferred.q_norm, q_norm.value, bytes);
    device.copy(deferred.k_norm, k_norm.value, bytes);
  }

  void backward_weight_chunk(std::int64_t first, std::int64_t sequences) const {
    const AttentionBackwardSpace space(Carver(args.workspace.data()), d);
    const AttentionSaved kept(args.saved, args.core, d, d.batch);
    const AttentionDeferred deferred(Carver(args.deferred), d);
    const Norm<T> own = deferred_norm(norm, deferred.norm, d.gpt2);
    const std::int64_t token = first * d.sequence, rows = sequences * d.sequence;
    const bool accumulate = args.accumulate || first > 0;
    const T* x = reinterpret_cast<const T*>(args.x_in) + token * d.hidden;
    const T* out = reinterpret_cast<const T*>(kept.out) + token * d.q;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + token * d.hidden;
    T* narrow = reinterpret_cast<T*>(space.narrow);
    const T* d_qkv = reinterpret_cast<const T*>(deferred.d_qkv) + token * d.qkv;
    T* d_normed = reinterpret_cast<T*>(deferred.d_normed) + token * d.hidden;
    back.weight_gradient(device, out, d_out, rows, accumulate, space.scratch);
    bias_gradient(device, back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    const T* d_project = d_qkv;
    if (d.qk_norm) {
      T* turned = reinterpret_cast<T*>(space.turned);
      turn(reinterpret_cast<const T*>(kept.qkv) + token * d.qkv, rows, angles(token), turned, space.head_rstd);
      d_project = heads_backward(space, kept, token, rows, d_qkv, q_norm.gradient, k_norm.gradient);
      copy_values(d_qkv, turned, rows);
    }
    own.forward(device, x, rows, narrow, space.statistics);
    projection_gradients(narrow, d_project, rows, accumulate, space.scratch);
    own.backward(device, x, space.statistics, d_normed, rows, d_normed, false, space.scratch);
  }

  const K& device;
  const SublayerArgs& args;
  Dims d;
  Norm<T> norm{};
  Linear<T> into{}, back{};
  Weight<T> into_bias, back_bias, q_bias, k_bias, v_bias, q_norm, k_norm;
};

template <class T, class K>
void attention_forward(const K& device, const SublayerArgs& args) {
  const AttentionSublayer<T, K> attention(device, args);
  const Dims& d = attention.d;
  SLUICE_CHECK(AttentionForwardSpace(Carver(nullptr), d, attention.keys()).bytes <= args.workspace.size(),
               "workspace of %zu bytes", args.workspace.size());
  for (std::int64_t b = 0; b < d.batch; b += d.attention_chunk_sequences)
    attention.forward_chunk(b, std::min(d.attention_chunk_sequences, d.batch - b));
}

/// recompute_qkv and recompute_core.
template <class T, class K>
void attention_again(const K& device, OpKind op, const SublayerArgs& args) {
  SLUICE_CHECK(args.unit->kind == Sublayer::attention, "%s", args.unit->name.c_str());
  const AttentionSublayer<T, K> attention(device, args);
  const Dims& d = attention.d;
  SLUICE_CHECK(AttentionForwardSpace(Carver(nullptr), d, attention.keys()).bytes <= args.workspace.size(),
               "workspace of %zu bytes", args.workspace.size());
  for (std::int64_t b = 0; b < d.batch; b += d.attention_chunk_sequences) {
    const std::int64_t sequences = std::min(d.attention_chunk_sequences, d.batch - b);
    op == OpKind::recompute_qkv ? attention.qkv_again_chunk(b, sequences) : attention.core_again_chunk(b, sequences);
  }
}

template <class T, class K>
void attention_backward(const K& device, const SublayerArgs& args) {
  const AttentionSublayer<T, K> attention(device, args);
  const Dims& d = attention.d;
  SLUICE_CHECK(AttentionBackwardSpace(Carver(nullptr), d).bytes <= args.workspace.size(), "workspace of %zu bytes",
               args.workspace.size());
  open_gradient(device, args);
  for (std::int64_t b = 0; b < d.batch; b += d.attention_chunk_sequences)
    attention.backward_chunk(b, std::min(d.attention_chunk_sequences, d.batch - b));
}

template <class T, class K>
void attention_backward_half(const K& device, OpKind half, const SublayerArgs& args) {
  const AttentionSublayer<T, K> attention(device, args);
  const Dims& d = attention.d;
  const bool to_input = half == OpKind::backward_input;
  SLUICE_CHECK(AttentionBackwardSpace(Carver(nullptr), d).bytes + (to_input ? unwanted_gradient_bytes(d) : 0) <=
                   args.workspace.size(),
               "workspace of %zu bytes", args.workspace.size());
  if (!to_input) open_gradient(device, args);
  for (std::int64_t b = 0; b < d.batch; b += d.attention_chunk_sequences) {
    const std::int64_t sequences = std::min(d.attention_chunk_sequences, d.batch - b);
    to_input ? attention.backward_input_chunk(b, sequences) : attention.backward_weight_chunk(b, sequences);
  }
}

/// part_forward, part_recompute and part_backward.
template <class T, class K>
void attention_part(const K& device, OpKind op, const SublayerArgs& args) {
  const AttentionSublayer<T, K> attention(device, args);
  const Dims& d = attention.d;
  const bool back = op == OpKind::part_backward;
  const std::uint64_t bytes = back ? AttentionBackwardSpace(Carver(nullptr), d).bytes
                                   : AttentionForwardSpace(Carver(nullptr), d, attention.keys()).bytes;
  SLUICE_CHECK(bytes <= args.workspace.size(), "workspace of %zu bytes", args.workspace.size());
  if (back) open_gradient(device, args);
  for (std::int64_t b = 0; b < d.batch; b += d.attention_chunk_sequences) {
    const std::int64_t sequences = std::min(d.attention_chunk_sequences, d.batch - b);
    back ? attention.part_backward_chunk(b, sequences) : attention.part_forward_chunk(b, sequences);
  }
}

}  // namespace sluice
