// The MLP sublayer: SwiGLU (arXiv 2002.05202), or GPT-2's GELU.
#include <algorithm>
#include <cstring>

#include "src/model/blocks.h"
#include "src/model/layers.h"
#include "src/model/layout.h"

namespace sluice {
namespace {

template <class T>
struct Mlp {
  explicit Mlp(const SublayerArgs& a) : args(a), d(*a.model, a.shape, a.dtype) {
    const float eps = a.model->config.norm_eps;
    if (d.gpt2) {
      norm = {weight<T>(a, "ln_2.weight"), weight<T>(a, "ln_2.bias"), eps, d.hidden};
      into = {weight<T>(a, "c_fc.weight"), d.hidden, d.pre, true};
      back = {weight<T>(a, "c_proj.weight"), d.ffn, d.hidden, true};
      into_bias = weight<T>(a, "c_fc.bias");
      back_bias = weight<T>(a, "c_proj.bias");
    } else {
      check_fused(*a.unit, "gate_proj.weight", "up_proj.weight", d.pre * d.hidden);
      norm = {weight<T>(a, "post_attention_layernorm.weight"), {}, eps, d.hidden};
      into = {weight<T>(a, "gate_proj.weight"), d.hidden, d.pre};
      back = {weight<T>(a, "down_proj.weight"), d.ffn, d.hidden};
    }
  }

  void activate(const T* pre, std::int64_t rows, T* h) const {
    if (d.gpt2)
      kernels::gelu_forward(pre, h, rows * d.ffn);
    else
      kernels::swiglu_forward(pre, pre + d.ffn, d.pre, rows, d.ffn, h, d.ffn);
  }
  /// dh becomes h.
  void activate_backward(const T* pre, T* dh, std::int64_t rows, T* d_pre) const {
    if (d.gpt2)
      kernels::gelu_backward(pre, dh, d_pre, rows * d.ffn);
    else
      kernels::swiglu_backward(pre, pre + d.ffn, d.pre, dh, d.ffn, rows, d.ffn, d_pre, d_pre + d.ffn, d.pre);
  }

  void forward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, false);
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    T* middle = reinterpret_cast<T*>(space.middle);
    T* pre =
        args.saved == nullptr ? reinterpret_cast<T*>(space.wide) : reinterpret_cast<T*>(args.saved) + first * d.pre;
    norm.forward(x, rows, middle, space.statistics);
    into.forward(middle, rows, pre, space.scratch);
    add_bias(into_bias, pre, d.pre, rows, d.pre);
    if (args.x_out == nullptr) return;
    T* out = reinterpret_cast<T*>(args.x_out) + first * d.hidden;
    activate(pre, rows, middle);
    back.forward(middle, rows, out, space.scratch);
    add_bias(back_bias, out, d.hidden, rows, d.hidden);
    kernels::add(x, out, out, rows * d.hidden);
  }

  void backward_chunk(std::int64_t first, std::int64_t rows) const {
    const MlpSpace space(Carver(args.workspace.data()), d, true);
    const bool accumulate = args.accumulate || first > 0;
    const T* x = reinterpret_cast<const T*>(args.x_in) + first * d.hidden;
    const T* pre = reinterpret_cast<const T*>(args.saved) + first * d.pre;
    const T* d_out = reinterpret_cast<const T*>(args.d_out) + first * d.hidden;
    T* d_in = reinterpret_cast<T*>(args.d_in) + first * d.hidden;
    T* wide = reinterpret_cast<T*>(space.wide);
    T* middle = reinterpret_cast<T*>(space.middle);
    back.input_gradient(d_out, rows, middle, space.scratch);
    activate_backward(pre, middle, rows, wide);
    back.weight_gradient(middle, d_out, rows, accumulate, space.scratch);
    bias_gradient(back_bias, d_out, d.hidden, rows, d.hidden, space.scratch);
    norm.forward(x, rows, middle, space.statistics);
    into.weight_gradient(middle, wide, rows, accumulate, space.scratch);
    bias_gradient(into_bias, wide, d.pre, rows, d.pre, space.scratch);
    into.input_gradient(wide, rows, middle, space.scratch);
    std::memcpy(d_in, d_out, static_cast<std::size_t>(rows * d.hidden) * sizeof(T));
    norm.backward(x, space.statistics, middle, rows, d_in, true, space.scratch);
  }

  const SublayerArgs& args;
  Dims d;
  Norm<T> norm{};
  Linear<T> into{}, back{};
  Weight<T> into_bias, back_bias;
};

}  // namespace

template <class T>
void mlp_forward(const SublayerArgs& args) {
  const Mlp<T> mlp(args);
  SLUICE_CHECK(MlpSpace(Carver(nullptr), mlp.d, false).bytes <= args.workspace.size(), "workspace of %zu bytes",
               args.workspace.size());
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk)
    mlp.forward_chunk(t, std::min(mlp.d.mlp_chunk, mlp.d.tokens - t));
}

template <class T>
void mlp_backward(const SublayerArgs& args) {
  const Mlp<T> mlp(args);
  SLUICE_CHECK(MlpSpace(Carver(nullptr), mlp.d, true).bytes <= args.workspace.size(), "workspace of %zu bytes",
               args.workspace.size());
  open_gradient(args);
  for (std::int64_t t = 0; t < mlp.d.tokens; t += mlp.d.mlp_chunk)
    mlp.backward_chunk(t, std::min(mlp.d.mlp_chunk, mlp.d.tokens - t));
}

template void mlp_forward<float>(const SublayerArgs&);
template void mlp_forward<bf16>(const SublayerArgs&);
template void mlp_backward<float>(const SublayerArgs&);
template void mlp_backward<bf16>(const SublayerArgs&);

}  // namespace sluice
