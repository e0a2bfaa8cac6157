// The kernels that sublayers are made of, as CUDA has them: work is put into a stream and runs in its order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu/elementwise.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/stream.h"
#include "sluice/profile.h"
#include "src/device/cuda/attention.h"
#include "src/model/kernel_sizes.h"

namespace sluice {

extern const KernelSizes cuda_kernel_sizes;

/// What multiplies and attends as was chosen. One thread at a time.
struct CudaLibraries {
  std::unique_ptr<kernels::cuda::Gemm> gemm;
  std::unique_ptr<CudaAttention> attention;

  /// `timed`: problems that are not among the choices are timed when they are first met. bad_request with what to do
  /// where a choice is another library's; fault where cuBLASLt is missing.
  static Result<CudaLibraries> open(const KernelChoices& choices, bool timed);
  /// Of the problems that were met since this was asked last.
  KernelChoices used();
};

/// A set of kernels as src/model/cpu_kernels.h has it. Errors are kept: ask status() behind a sublayer.
class CudaKernels {
 public:
  CudaKernels(kernels::cuda::Stream& stream, const CudaLibraries& libraries)
      : stream_(stream), gemm_(*libraries.gemm), attention_(*libraries.attention) {}
  const KernelSizes& sizes() const { return cuda_kernel_sizes; }
  const Status& status() const { return failed_.ok() ? stream_.status() : failed_; }

  // ---- what kernels/cuda has, with the arguments of kernels/cpu
  void rmsnorm_forward(const auto&... a) const { kernels::cuda::rmsnorm_forward(a..., stream_); }
  void rmsnorm_backward(const auto&... a) const { kernels::cuda::rmsnorm_backward(a..., stream_); }
  void rmsnorm_heads_forward(const auto&... a) const { kernels::cuda::rmsnorm_heads_forward(a..., stream_); }
  void rmsnorm_heads_backward(const auto&... a) const { kernels::cuda::rmsnorm_heads_backward(a..., stream_); }
  void layernorm_forward(const auto&... a) const { kernels::cuda::layernorm_forward(a..., stream_); }
  void layernorm_backward(const auto&... a) const { kernels::cuda::layernorm_backward(a..., stream_); }
  void attention_forward(const auto&... a) const {
    if (status().ok()) failed_ = attention_.forward(a..., stream_);
  }
  void attention_backward(const auto&... a) const { kernels::cuda::attention_backward(a..., stream_); }
  void attention_merge(const auto&... a) const { kernels::cuda::attention_merge(a..., stream_); }
  void swiglu_forward(const auto&... a) const { kernels::cuda::swiglu_forward(a..., stream_); }
  void swiglu_backward(const auto&... a) const { kernels::cuda::swiglu_backward(a..., stream_); }
  void gelu_forward(const auto&... a) const { kernels::cuda::gelu_forward(a..., stream_); }
  void gelu_backward(const auto&... a) const { kernels::cuda::gelu_backward(a..., stream_); }
  void cross_entropy_forward(const auto&... a) const { kernels::cuda::cross_entropy_forward(a..., stream_); }
  void cross_entropy_forward_backward(const auto&... a) const {
    kernels::cuda::cross_entropy_forward_backward(a..., stream_);
  }
  void cross_entropy_part(const auto&... a) const { kernels::cuda::cross_entropy_part(a..., stream_); }
  void cross_entropy_of_parts_forward(const auto&... a) const {
    kernels::cuda::cross_entropy_of_parts_forward(a..., stream_);
  }
  void cross_entropy_of_parts_forward_backward(const auto&... a) const {
    kernels::cuda::cross_entropy_of_parts_forward_backward(a..., stream_);
  }
  void add(const auto&... a) const { kernels::cuda::add(a..., stream_); }
  void add_f32(const auto&... a) const { kernels::cuda::add_f32(a..., stream_); }
  void add_bias(const auto&... a) const { kernels::cuda::add_bias(a..., stream_); }
  template <class T>
  void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width) const {
    kernels::cuda::add_sum(x, sum, bias, out, rows, width, stream_);
  }
  void bias_gradient(const auto&... a) const { kernels::cuda::bias_gradient(a..., stream_); }
  void quantize(const auto&... a) const { kernels::cuda::quantize(a..., stream_); }
  void dequantize(const auto&... a) const { kernels::cuda::dequantize(a..., stream_); }
  void dequantize_add(const auto&... a) const { kernels::cuda::dequantize_add(a..., stream_); }
  void add_widened(const auto&... a) const { kernels::cuda::add_widened(a..., stream_); }
  void widen(const auto&... a) const { kernels::cuda::widen(a..., stream_); }
  void narrow(const auto&... a) const { kernels::cuda::narrow(a..., stream_); }

  template <class T>
  void rope(T* x, std::int64_t stride, std::int64_t tokens, const kernels::Positions& positions, std::int64_t heads,
            std::int64_t head_dim, const float* cos, const float* sin, bool inverse) const {
    kernels::cuda::rope(x, stride, tokens, positions.sequence, positions.first, heads, head_dim, cos, sin, inverse,
                        positions.each, stream_);
  }
  void rope_rows(const float* frequencies, std::int64_t half, double scale, const kernels::Positions& positions,
                 std::int64_t rows, float* cos, float* sin) const {
    kernels::cuda::rope_rows(frequencies, half, scale, positions.sequence, positions.first, rows, cos, sin,
                             positions.each, stream_);
  }
  template <class T>
  void embed_forward(const std::int32_t* tokens, std::int64_t count, const kernels::Positions& positions,
                     const T* table, const T* places, std::int64_t width, T* out) const {
    kernels::cuda::embed_forward(tokens, count, positions.sequence, positions.first, table, places, width, out,
                                 positions.each, stream_);
  }
  template <class T>
  void embed_backward(const std::int32_t* tokens, std::int64_t count, const kernels::Positions& positions,
                      const T* d_out, std::int64_t width, float* d_table, float* d_places) const {
    // Places count from the first one of each row.
    float* places = d_places == nullptr || positions.each != nullptr ? d_places : d_places + positions.first * width;
    kernels::cuda::embed_backward(tokens, count, positions.sequence, d_out, width, d_table, places, positions.each,
                                  stream_);
  }
  void gemm(kernels::ConstMatrix a, kernels::ConstMatrix b, kernels::Matrix c, std::int64_t m, std::int64_t n,
            std::int64_t k, bool accumulate, std::span<std::byte> workspace) const;

  void copy(void* dst, const void* src, std::size_t bytes) const;
  void zero(void* dst, std::size_t bytes) const;
  void copy_rows(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride, std::int64_t row_bytes,
                 std::int64_t rows) const;
  void add_losses(const float* losses, std::int64_t rows, bool first, double* sum) const;

 private:
  kernels::cuda::Stream& stream_;
  kernels::cuda::Gemm& gemm_;
  CudaAttention& attention_;
  mutable Status failed_;  ///< of a library: launches remember theirs in the stream
};

}  // namespace sluice
