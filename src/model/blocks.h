// The two blocks that every sublayer is made of, on chunks of rows: a norm and a linear map, forward and backward, with
// the kernels `k` of any device.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/norm.h"
#include "sluice/status.h"
#include "src/model/sublayer.h"
#include "src/model/workspaces.h"

namespace sluice {

template <class T>
constexpr Dtype dtype_of = sizeof(T) == 4 ? Dtype::f32 : Dtype::bf16;

/// One tensor of the unit in work: its values and, in the backward pass, its gradient.
template <class T>
struct Weight {
  const T* value = nullptr;
  float* gradient = nullptr;
};

/// The tensor whose name ends so; nulls where the unit has none.
template <class T>
Weight<T> weight(const SublayerArgs& args, std::string_view suffix) {
  const TensorSpec* t = args.unit->tensor(suffix);
  if (t == nullptr) return {};
  return {args.parameters == nullptr ? nullptr : reinterpret_cast<const T*>(args.parameters) + t->offset,
          args.gradient == nullptr ? nullptr : args.gradient + t->offset};
}

/// The norm that a sublayer begins with, and GPT-2's bias that it ends with.
template <class T>
struct Norm;
template <class T>
Norm<T> norm_of(const SublayerArgs& args, const Dims& d);
template <class T>
Weight<T> last_bias_of(const SublayerArgs& args, const Dims& d) {
  const bool has_one = d.gpt2 && (args.unit->kind == Sublayer::attention || args.unit->kind == Sublayer::mlp);
  return has_one ? weight<T>(args, "c_proj.bias") : Weight<T>{};
}

/// Of the micro-batch's tokens from `token` on, with which a row begins.
inline kernels::Positions token_positions(const SublayerArgs& args, std::int64_t token = 0) {
  const std::int32_t* each = args.tokens.positions;
  return {args.shape.sequence, args.position0, each != nullptr ? each + token : nullptr};
}

/// RMSNorm, or LayerNorm where there is a bias. statistics: 2 x rows floats.
template <class T>
struct Norm {
  Weight<T> scale, bias;
  float eps;
  std::int64_t width;

  template <class K>
  void forward(const K& device, const T* x, std::int64_t rows, T* y, float* statistics) const {
    if (bias.value == nullptr)
      device.rmsnorm_forward(x, width, scale.value, eps, rows, width, y, width, statistics);
    else
      device.layernorm_forward(x, scale.value, bias.value, eps, rows, width, y, statistics + rows, statistics);
  }
  /// dx is set, or added to with `add`; gradients of the parameters are added to.
  template <class K>
  void backward(const K& device, const T* x, const float* statistics, const T* dy, std::int64_t rows, T* dx, bool add,
                std::span<std::byte> scratch) const {
    float* sums = reinterpret_cast<float*>(scratch.data());
    if (bias.value == nullptr)
      device.rmsnorm_backward(x, width, scale.value, statistics, dy, width, rows, width, dx, width, add, scale.gradient,
                              sums);
    else
      device.layernorm_backward(x, scale.value, statistics + rows, statistics, dy, rows, width, dx, add, scale.gradient,
                                bias.gradient, sums);
  }
};

template <class T>
Norm<T> norm_of(const SublayerArgs& args, const Dims& d) {
  const auto of = [&](std::string_view scale, std::string_view bias) {
    return Norm<T>{weight<T>(args, scale), bias.empty() ? Weight<T>{} : weight<T>(args, bias),
                   args.model->config.norm_eps, d.hidden};
  };
  switch (args.unit->kind) {
    case Sublayer::embed: return {};
    case Sublayer::attention: return d.gpt2 ? of("ln_1.weight", "ln_1.bias") : of("input_layernorm.weight", "");
    case Sublayer::mlp: return d.gpt2 ? of("ln_2.weight", "ln_2.bias") : of("post_attention_layernorm.weight", "");
    case Sublayer::head: return d.gpt2 ? of("ln_f.weight", "ln_f.bias") : of("norm.weight", "");
  }
  return {};
}

/// The norm's parameters, put away by backward_input, and then what norms of backward_weight read.
template <class T, class K>
void defer_norm(const K& device, const Norm<T>& norm, const DeferredNorm& to) {
  const std::size_t bytes = static_cast<std::size_t>(norm.width) * sizeof(T);
  device.copy(to.scale, norm.scale.value, bytes);
  if (norm.bias.value != nullptr) device.copy(to.bias, norm.bias.value, bytes);
}
template <class T>
Norm<T> deferred_norm(Norm<T> norm, const DeferredNorm& from, bool has_bias) {
  norm.scale.value = reinterpret_cast<const T*>(from.scale);
  norm.bias.value = has_bias ? reinterpret_cast<const T*>(from.bias) : nullptr;
  return norm;
}
/// With gradients that go nowhere.
template <class T>
Norm<T> without_gradients(Norm<T> norm, float* unwanted) {
  norm.scale.gradient = unwanted;
  norm.bias.gradient = unwanted + norm.width;
  return norm;
}

/// y = x W^T with W [out, in], or y = x W with W [in, out] (GPT-2's Conv1D). Dense rows, but where an ld is given. Bias
/// is the caller's.
template <class T>
struct Linear {
  Weight<T> matrix;
  std::int64_t in, out;
  bool conv1d = false;

  template <class K>
  void forward(const K& device, const T* x, std::int64_t rows, kernels::Matrix y, std::span<std::byte> scratch) const {
    device.gemm({x, dtype_of<T>, in}, {matrix.value, dtype_of<T>, ld(), !conv1d}, y, rows, out, in, false, scratch);
  }
  template <class K>
  void forward(const K& device, const T* x, std::int64_t rows, T* y, std::span<std::byte> scratch) const {
    forward(device, x, rows, kernels::Matrix{y, dtype_of<T>, out}, scratch);
  }
  template <class K>
  void input_gradient(const K& device, const T* dy, std::int64_t dy_ld, std::int64_t rows, kernels::Matrix dx,
                      std::span<std::byte> scratch) const {
    device.gemm({dy, dtype_of<T>, dy_ld}, {matrix.value, dtype_of<T>, ld(), conv1d}, dx, rows, in, out, false, scratch);
  }
  template <class K>
  void input_gradient(const K& device, const T* dy, std::int64_t dy_ld, std::int64_t rows, T* dx,
                      std::span<std::byte> scratch) const {
    input_gradient(device, dy, dy_ld, rows, kernels::Matrix{dx, dtype_of<T>, in}, scratch);
  }
  template <class K>
  void input_gradient(const K& device, const T* dy, std::int64_t rows, T* dx, std::span<std::byte> scratch) const {
    input_gradient(device, dy, out, rows, dx, scratch);
  }
  template <class K>
  void weight_gradient(const K& device, const T* x, const T* dy, std::int64_t dy_ld, std::int64_t rows, bool accumulate,
                       std::span<std::byte> scratch) const {
    const kernels::ConstMatrix a{x, dtype_of<T>, in, conv1d}, b{dy, dtype_of<T>, dy_ld, !conv1d};
    const kernels::Matrix gradient{matrix.gradient, Dtype::f32, ld()};
    if (conv1d)
      device.gemm(a, b, gradient, in, out, rows, accumulate, scratch);
    else
      device.gemm(b, a, gradient, out, in, rows, accumulate, scratch);
  }
  template <class K>
  void weight_gradient(const K& device, const T* x, const T* dy, std::int64_t rows, bool accumulate,
                       std::span<std::byte> scratch) const {
    weight_gradient(device, x, dy, out, rows, accumulate, scratch);
  }

 private:
  std::int64_t ld() const { return conv1d ? out : in; }
};

/// The same linear map over neighbouring tensors (q, k, v; gate, up), which lie in memory without gaps.
inline void check_fused(const UnitSpec& unit, std::string_view first, std::string_view last, std::int64_t numel) {
  const TensorSpec *a = unit.tensor(first), *b = unit.tensor(last);
  SLUICE_CHECK(a != nullptr && b != nullptr && b->offset + b->numel - a->offset == static_cast<std::uint64_t>(numel),
               "tensors of %s are apart", unit.name.c_str());
}

template <class T, class K>
void add_bias(const K& device, const Weight<T>& bias, T* y, std::int64_t ld, std::int64_t rows, std::int64_t width) {
  if (bias.value != nullptr) device.add_bias(y, ld, bias.value, rows, width);
}
template <class T, class K>
void bias_gradient(const K& device, const Weight<T>& bias, const T* dy, std::int64_t ld, std::int64_t rows,
                   std::int64_t width, std::span<std::byte> scratch) {
  if (bias.gradient != nullptr)
    device.bias_gradient(dy, ld, rows, width, bias.gradient, reinterpret_cast<float*>(scratch.data()));
}

/// With accumulate unset, zero all of the unit's gradient but the matrices that the first chunk's matmul sets.
template <class K>
void open_gradient(const K& device, const SublayerArgs& args) {
  if (args.accumulate) return;
  const auto zero = [&](std::uint64_t first, std::uint64_t last) {
    if (first < last) device.zero(args.gradient + first, 4 * (last - first));
  };
  std::uint64_t done = 0;
  for (const TensorSpec& t : args.unit->tensors) {
    const bool set_by_matmul = args.unit->kind != Sublayer::embed && t.shape.size() == 2;
    if (!set_by_matmul) continue;
    zero(done, t.offset);
    done = t.offset + t.numel;
  }
  zero(done, args.unit->numel);
}

}  // namespace sluice
