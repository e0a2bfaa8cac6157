// RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450), statistics in fp32, in the calling thread's OpenMP team.
// Results do not depend on the number of threads. y may be x; dx may be dy or x.
#pragma once

#include <cstdint>

#include "sluice/dtype.h"

namespace sluice::kernels {

/// x, y: [rows, width], row strides x_ld and y_ld in elements. weight: [width]. rstd: [rows] fp32, kept for backward.
template <class T>
void rmsnorm_forward(const T* x, std::int64_t x_ld, const T* weight, float eps, std::int64_t rows, std::int64_t width,
                     T* y, std::int64_t y_ld, float* rstd);

/// dx is set, or added to with `add_to_dx` (the residual branch). d_weight: [width] fp32 += , summed over rows in a
/// fixed order (blocks of 64 rows), so that it does not depend on threads.
template <class T>
void rmsnorm_backward(const T* x, std::int64_t x_ld, const T* weight, const float* rstd, const T* dy,
                      std::int64_t dy_ld, std::int64_t rows, std::int64_t width, T* dx, std::int64_t dx_ld,
                      bool add_to_dx, float* d_weight, float* workspace);
/// floats of workspace for a backward of this shape
std::int64_t norm_workspace_floats(std::int64_t rows, std::int64_t width);

/// RMSNorm of every head of queries and keys (Qwen 3), which lie beside each other in rows of x: first `queries` heads
/// with one weight, then `keys` with another, [dim] each.
template <class T>
struct HeadNorms {
  const T *query_weight, *key_weight;
  std::int64_t queries, keys, dim;
  std::int64_t heads() const { return queries + keys; }
  const T* weight(std::int64_t head) const { return head < queries ? query_weight : key_weight; }
};

/// x, y: [rows, ld]. rstd: [heads, rows] fp32.
template <class T>
void rmsnorm_heads_forward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, float eps, std::int64_t rows, T* y,
                           float* rstd);
/// dx is set, [rows, ld] as x and dy; gradients of the weights are added to, in an order that follows from the shape.
/// workspace: norm_workspace_floats(rows, heads x dim).
template <class T>
void rmsnorm_heads_backward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, const float* rstd, const T* dy,
                            std::int64_t rows, T* dx, float* d_query_weight, float* d_key_weight, float* workspace);

/// LayerNorm with weight and bias; mean and rstd: [rows] fp32.
template <class T>
void layernorm_forward(const T* x, const T* weight, const T* bias, float eps, std::int64_t rows, std::int64_t width,
                       T* y, float* mean, float* rstd);
template <class T>
void layernorm_backward(const T* x, const T* weight, const float* mean, const float* rstd, const T* dy,
                        std::int64_t rows, std::int64_t width, T* dx, bool add_to_dx, float* d_weight, float* d_bias,
                        float* workspace);

}  // namespace sluice::kernels
