// The kernels that sublayers are made of, as the CPU has them.
//
// Sublayers are templates over such a set: kernels of one kind of device under one set of names. All addresses are the
// device's, and what a call asks for has happened before what later calls ask for.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/norm.h"
#include "src/model/kernel_sizes.h"

namespace sluice {

struct CpuKernels {
  const KernelSizes& sizes() const { return cpu_kernel_sizes; }

  // ---- what kernels/cpu has, with its arguments
  void gemm(kernels::ConstMatrix a, kernels::ConstMatrix b, kernels::Matrix c, std::int64_t m, std::int64_t n,
            std::int64_t k, bool accumulate, std::span<std::byte> workspace) const {
    kernels::gemm(a, b, c, m, n, k, accumulate, workspace);
  }
  void rmsnorm_forward(const auto&... a) const { kernels::rmsnorm_forward(a...); }
  void rmsnorm_backward(const auto&... a) const { kernels::rmsnorm_backward(a...); }
  void rmsnorm_heads_forward(const auto&... a) const { kernels::rmsnorm_heads_forward(a...); }
  void rmsnorm_heads_backward(const auto&... a) const { kernels::rmsnorm_heads_backward(a...); }
  void layernorm_forward(const auto&... a) const { kernels::layernorm_forward(a...); }
  void layernorm_backward(const auto&... a) const { kernels::layernorm_backward(a...); }
  void attention_forward(const auto&... a) const { kernels::attention_forward(a...); }
  void attention_backward(const auto&... a) const { kernels::attention_backward(a...); }
  void attention_merge(const auto&... a) const { kernels::attention_merge(a...); }
  void rope(const auto&... a) const { kernels::rope(a...); }
  void rope_rows(const auto&... a) const { kernels::rope_rows(a...); }
  void swiglu_forward(const auto&... a) const { kernels::swiglu_forward(a...); }
  void swiglu_backward(const auto&... a) const { kernels::swiglu_backward(a...); }
  void gelu_forward(const auto&... a) const { kernels::gelu_forward(a...); }
  void gelu_backward(const auto&... a) const { kernels::gelu_backward(a...); }
  void embed_forward(const auto&... a) const { kernels::embed_forward(a...); }
  void embed_backward(const auto&... a) const { kernels::embed_backward(a...); }
  void cross_entropy_forward(const auto&... a) const { kernels::cross_entropy_forward(a...); }
  void cross_entropy_forward_backward(const auto&... a) const { kernels::cross_entropy_forward_backward(a...); }
  void cross_entropy_part(const auto&... a) const { kernels::cross_entropy_part(a...); }
  void cross_entropy_of_parts_forward(const auto&... a) const { kernels::cross_entropy_of_parts_forward(a...); }
  void cross_entropy_of_parts_forward_backward(const auto&... a) const {
    kernels::cross_entropy_of_parts_forward_backward(a...);
  }
  void add(const auto&... a) const { kernels::add(a...); }
  void add_bias(const auto&... a) const { kernels::add_bias(a...); }
  template <class T>
  void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width) const {
    kernels::add_sum(x, sum, bias, out, rows, width);
  }
  void bias_gradient(const auto&... a) const { kernels::bias_gradient(a...); }
  void add_widened(const auto&... a) const { kernels::add_widened(a...); }
  void widen(const auto&... a) const { kernels::widen(a...); }
  void narrow(const auto&... a) const { kernels::narrow(a...); }

  // ---- and what the host does by itself
  void copy(void* dst, const void* src, std::size_t bytes) const { std::memcpy(dst, src, bytes); }
  void zero(void* dst, std::size_t bytes) const { std::memset(dst, 0, bytes); }
  /// `rows` rows of row_bytes, so many bytes apart.
  void copy_rows(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride, std::int64_t row_bytes,
                 std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<std::byte*>(dst) + r * dst_stride, static_cast<const std::byte*>(src) + r * src_stride,
                  static_cast<std::size_t>(row_bytes));
  }
  /// *sum = (first ? 0 : *sum) + losses, one after the other
  void add_losses(const float* losses, std::int64_t rows, bool first, double* sum) const {
    double total = first ? 0 : *sum;
    for (std::int64_t i = 0; i < rows; ++i) total += static_cast<double>(losses[i]);
    *sum = total;
  }
};

}  // namespace sluice
