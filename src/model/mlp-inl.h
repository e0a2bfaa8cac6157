// The MLP sublayer: SwiGLU (arXiv 2002.05202), or GPT-2's GELU.
#pragma once

#include <algorithm>

#include "src/model/blocks.h"
#include "src/model/workspaces.h"

namespace sluice {

template <class T, class K>
struct MlpSublayer {
  MlpSublayer(const K& kernels_of_device, const SublayerArgs& a)
      : device(kernels_of_device), args(a), d(*a.model, a.shape, a.dtype, kernels_of_device.sizes()) {
    norm = norm_of<T>(a, d);
    back_bias = last_bias_of<T>(a, d);
    if (d.gpt2) {
      into = {weight<T>(a, "c_fc.weight"), d.hidden, d.pre, true};
      back = {weight<T>(a, "c_proj.weight"), d.ffn, d.hidden, true};
      into_bias = weight<T>(a, "c_fc.bias");
    } else {
      check_fused(*a.unit, "gate_proj.weight", "up_proj.weight", d.pre * d.hidden);
      into = {weight<T>(a, "gate_proj.weight"), d.hidden, d.pre};
      back = {weight<T>(a, "down_proj.weight"), d.ffn, d.hidden};
    }
  }

  void activate(const T* pre, std::int64_t rows, T* h) const {
    if (d.gpt2)
      device.gelu_forward(pre, h, rows * d.ffn);
    else
      device.swiglu_forward(pre, pre + d.ffn, d.pre, rows, d.ffn, h, d.ffn);
  }
  /// dh becomes h.
  void activate_backward(const T* pre, T* dh, std::int64_t rows, T* d_pre) const {
    if (d.gpt2)
      device.gelu_backward(pre, dh, d_pre, rows * d.ffn);
    else
      device.swiglu_backward(pre, pre + d.ffn, d.pre, dh, d.ffn, rows, d.ffn, d_pre, d_pre + d.ffn, d.pre);
  }

  void forward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, MlpPass::forward);
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* middle = reinterpret_cast<T*>(space.middle);
    T* pre =
        args.saved == nullptr ? reinterpret_cast<T*>(space.wide) : reinterpret_cast<T*>(args.saved) + first * d.pre;
    norm.forward(device, x, rows, middle, space.statistics);
    into.forward(device, middle, rows, pre, space.scratch);
    add_bias(device, into_bias, pre, d.pre, rows, d.pre);
    if (args.x_out == nullptr) return;
    T* out = reinterpret_cast<T*>(args.x_out) + first * d.hidden;
    activate(pre, rows, middle);
    back.forward(device, middle, rows, out, space.scratch);
    add_bias(device, back_bias, out, d.hidden, rows, d.hidden);
    device.add(x, out, out, rows * d.hidden);
  }

  /// backward, or backward_again where nothing is saved.
  MlpPass pass_back() const { return args.saved == nullptr ? MlpPass::backward_again : MlpPass::backward; }

  /// What enters the activation, as it was saved or made again.
  const T* pre_chunk(const MlpSpace& space, const T* x, std::int64_t first, std::int64_t rows) const {
    if (args.saved != nullptr) return reinterpret_cast<const T*>(args.saved) + first * d.pre;
    T *middle = reinterpret_cast<T*>(space.middle), *pre = reinterpret_cast<T*>(space.again);
    norm.forward(device, x, rows, middle, space.statistics);
    into.forward(device, middle, rows, pre, space.scratch);
    add_bias(device, into_bias, pre, d.pre, rows, d.pre);
    return pre;
  }

  void backward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, pass_back());
    const bool accumulate = args.accumulate || first > 0;
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    const T* pre = pre_chunk(space, x, first, rows);
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + first * d.hidden;
    T* d_in = reinterpret_cast<T*>(args.d_in) + first * d.hidden;
    T* wide = reinterpret_cast<T*>(space.wide);
    T* middle = reinterpret_cast<T*>(space.middle);
    back.input_gradient(device, d_out, rows, middle, space.scratch);
    activate_backward(pre, middle, rows, wide);
    back.weight_gradient(device, middle, d_out, rows, accumulate, space.scratch);
    bias_gradient(device, back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    norm.forward(device, x, rows, middle, space.statistics);
    into.weight_gradient(device, middle, wide, rows, accumulate, space.scratch);
    bias_gradient(device, into_bias, wide, d.pre, rows, d.pre, space.scratch);
    into.input_gradient(device, wide, rows, middle, space.scratch);
    device.copy(d_in, d_out, static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    norm.backward(device, x, space.statistics, middle, rows, d_in, true, space.scratch);
  }

  void part_forward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, MlpPass::forward);
    const T* normed = reinterpret_cast<const T*>(args.normed) + first * d.hidden;
    T* middle = reinterpret_cast<T*>(space.middle);
    T* pre =
        args.saved == nullptr ? reinterpret_cast<T*>(space.wide) : reinterpret_cast<T*>(args.saved) + first * d.pre;
    into.forward(device, normed, rows, pre, space.scratch);
    add_bias(device, into_bias, pre, d.pre, rows, d.pre);
    if (args.sum == nullptr) return;
    activate(pre, rows, middle);
    back.forward(device, middle, rows, kernels::Matrix{args.sum + first * d.hidden, Dtype::f32, d.hidden},
                 space.scratch);
  }

  void part_backward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, MlpPass::backward);
    const bool accumulate = args.accumulate || first > 0;
    const T* normed = reinterpret_cast<const T*>(args.normed) + first * d.hidden;
    const T* pre = reinterpret_cast<const T*>(args.saved) + first * d.pre;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + first * d.hidden;
    T* wide = reinterpret_cast<T*>(space.wide);
    T* middle = reinterpret_cast<T*>(space.middle);
    back.input_gradient(device, d_out, rows, middle, space.scratch);
    activate_backward(pre, middle, rows, wide);
    back.weight_gradient(device, middle, d_out, rows, accumulate, space.scratch);
    into.weight_gradient(device, normed, wide, rows, accumulate, space.scratch);
    bias_gradient(device, into_bias, static_cast<const T*>(wide), d.pre, rows, d.pre, space.scratch);
    into.input_gradient(device, wide, d.pre, rows, kernels::Matrix{args.d_sum + first * d.hidden, Dtype::f32, d.hidden},
                        space.scratch);
  }

  void backward_input_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, MlpPass::backward);
    const MlpDeferred deferred(Carver(args.deferred), d);
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    const T* pre = reinterpret_cast<const T*>(args.saved) + first * d.pre;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + first * d.hidden;
    T* d_in = reinterpret_cast<T*>(args.d_in) + first * d.hidden;
    T* wide = reinterpret_cast<T*>(space.wide);
    T* middle = reinterpret_cast<T*>(space.middle);
    T* dh = reinterpret_cast<T*>(deferred.dh) + first * d.ffn;
    T* d_normed = reinterpret_cast<T*>(deferred.d_normed) + first * d.hidden;
    back.input_gradient(device, d_out, rows, dh, space.scratch);
    device.copy(middle, dh, static_cast<std::size_t>(rows * d.ffn) * sizeof(T));
    activate_backward(pre, middle, rows, wide);
    norm.forward(device, x, rows, middle, space.statistics);
    into.input_gradient(device, wide, rows, d_normed, space.scratch);
    device.copy(d_in, d_out, static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    without_gradients(norm, reinterpret_cast<float*>(args.workspace.data() + space.bytes))
        .backward(device, x, space.statistics, d_normed, rows, d_in, true, space.scratch);
    if (first == 0) defer_norm(device, norm, deferred.norm);
  }

  void backward_weight_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, MlpPass::backward);
    const MlpDeferred deferred(Carver(args.deferred), d);
    const Norm<T> own = deferred_norm(norm, deferred.norm, d.gpt2);
    const bool accumulate = args.accumulate || first > 0;
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    const T* pre = reinterpret_cast<const T*>(args.saved) + first * d.pre;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + first * d.hidden;
    T* wide = reinterpret_cast<T*>(space.wide);
    T* middle = reinterpret_cast<T*>(space.middle);
    T* dh = reinterpret_cast<T*>(deferred.dh) + first * d.ffn;
    T* d_normed = reinterpret_cast<T*>(deferred.d_normed) + first * d.hidden;
    activate_backward(pre, dh, rows, wide);
    back.weight_gradient(device, dh, d_out, rows, accumulate, space.scratch);
    bias_gradient(device, back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    own.forward(device, x, rows, middle, space.statistics);
    into.weight_gradient(device, middle, wide, rows, accumulate, space.scratch);
    bias_gradient(device, into_bias, static_cast<const T*>(wide), d.pre, rows, d.pre, space.scratch);
    own.backward(device, x, space.statistics, d_normed, rows, d_normed, false, space.scratch);
  }

  const K& device;
  const SublayerArgs& args;
  Dims d;
  Norm<T> norm{};
  Linear<T> into{}, back{};
  Weight<T> into_bias, back_bias;
};

template <class T, class K>
void mlp_forward(const K& device, const SublayerArgs& args) {
  const MlpSublayer<T, K> mlp(device, args);
  SLUICE_CHECK(MlpSpace(Carver(nullptr), mlp.d, MlpPass::forward).bytes <= args.workspace.size(),
               "workspace of %zu bytes", args.workspace.size());
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk)
    mlp.forward_chunk(t, std::min(mlp.d.mlp_chunk, mlp.d.tokens - t));
}

template <class T, class K>
void mlp_backward(const K& device, const SublayerArgs& args) {
  const MlpSublayer<T, K> mlp(device, args);
  SLUICE_CHECK(MlpSpace(Carver(nullptr), mlp.d, mlp.pass_back()).bytes <= args.workspace.size(),
               "workspace of %zu bytes", args.workspace.size());
  open_gradient(device, args);
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk)
    mlp.backward_chunk(t, std::min(mlp.d.mlp_chunk, mlp.d.tokens - t));
}

template <class T, class K>
void mlp_backward_half(const K& device, OpKind half, const SublayerArgs& args) {
  const MlpSublayer<T, K> mlp(device, args);
  const bool to_input = half == OpKind::backward_input;
  SLUICE_CHECK(
      MlpSpace(Carver(nullptr), mlp.d, MlpPass::backward).bytes + (to_input ? unwanted_gradient_bytes(mlp.d) : 0) <=
          args.workspace.size(),
      "workspace of %zu bytes", args.workspace.size());
  if (!to_input) open_gradient(device, args);
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk) {
    const std::int64_t rows = std::min(mlp.d.mlp_chunk, mlp.d.tokens - t);
    to_input ? mlp.backward_input_chunk(t, rows) : mlp.backward_weight_chunk(t, rows);
  }
}

/// part_forward, part_recompute and part_backward.
template <class T, class K>
void mlp_part(const K& device, OpKind op, const SublayerArgs& args) {
  const MlpSublayer<T, K> mlp(device, args);
  const bool back = op == OpKind::part_backward;
  SLUICE_CHECK(
      MlpSpace(Carver(nullptr), mlp.d, back ? MlpPass::backward : MlpPass::forward).bytes <= args.workspace.size(),
      "workspace of %zu bytes", args.workspace.size());
  if (back) open_gradient(device, args);
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk) {
    const std::int64_t rows = std::min(mlp.d.mlp_chunk, mlp.d.tokens - t);
    back ? mlp.part_backward_chunk(t, rows) : mlp.part_forward_chunk(t, rows);
  }
}

}  // namespace sluice
