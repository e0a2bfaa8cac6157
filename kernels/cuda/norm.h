// RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450), statistics in fp32, as kernels/cpu/norm.h has them, on
// device memory. The order of every sum follows from the shape alone. y may be x; dx may be dy or x.
#pragma once

#include <cstdint>

#include "kernels/cpu/norm.h"
#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"

namespace sluice::kernels::cuda {

/// x, y: [rows, width], row strides x_ld and y_ld in elements. weight: [width]. rstd: [rows] fp32, kept for backward.
template <class T>
void rmsnorm_forward(const T* x, std::int64_t x_ld, const T* weight, float eps, std::int64_t rows, std::int64_t width,
                     T* y, std::int64_t y_ld, float* rstd, Stream& stream);

/// dx is set, or added to with `add_to_dx` (the residual branch). d_weight: [width] fp32 += , summed over rows in
/// blocks whose size follows from rows. workspace: norm_workspace_floats(rows, width). x and dy are read once where a
/// row is at most 16 KiB of T.
template <class T>
void rmsnorm_backward(const T* x, std::int64_t x_ld, const T* weight, const float* rstd, const T* dy,
                      std::int64_t dy_ld, std::int64_t rows, std::int64_t width, T* dx, std::int64_t dx_ld,
                      bool add_to_dx, float* d_weight, float* workspace, Stream& stream);
/// floats of workspace for a backward of this shape, of either norm
std::int64_t norm_workspace_floats(std::int64_t rows, std::int64_t width);

using kernels::HeadNorms;

/// x, y: [rows, ld]. rstd: [heads, rows] fp32. In one launch, where a head is at most 32 packs of 16 bytes.
template <class T>
void rmsnorm_heads_forward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, float eps, std::int64_t rows, T* y,
                           float* rstd, Stream& stream);
/// dx is set, [rows, ld] as x and dy; gradients of the weights are added to, in an order that follows from the shape.
/// workspace: norm_workspace_floats(rows, heads x dim).
template <class T>
void rmsnorm_heads_backward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, const float* rstd, const T* dy,
                            std::int64_t rows, T* dx, float* d_query_weight, float* d_key_weight, float* workspace,
                            Stream& stream);

/// LayerNorm with weight and bias; mean and rstd: [rows] fp32.
template <class T>
void layernorm_forward(const T* x, const T* weight, const T* bias, float eps, std::int64_t rows, std::int64_t width,
                       T* y, float* mean, float* rstd, Stream& stream);
template <class T>
void layernorm_backward(const T* x, const T* weight, const float* mean, const float* rstd, const T* dy,
                        std::int64_t rows, std::int64_t width, T* dx, bool add_to_dx, float* d_weight, float* d_bias,
                        float* workspace, Stream& stream);

}  // namespace sluice::kernels::cuda
