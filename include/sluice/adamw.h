// AdamW (Loshchilov and Hutter, arXiv 1711.05101) on one contiguous range, as a fixed sequence of IEEE operations:
// every SIMD target, thread count, partition and alignment gives the same bits.
//
// With bf16 parameters the fp32 master weight is bf16 parameter + signed 16-bit remainder: master bits =
// (parameter bits << 16) + remainder, exactly; the parameter is the master rounded half away from zero in integer
// arithmetic, so that the remainder always fits. NaN becomes the quiet NaN 0x7fc0.
//
// With g = gradient * gradient_scale, all in fp32, every product below rounded unless inside an fma:
//     m = fma(1 - beta1, g - m, m)
//     v = fma((1 - beta2) g, g, beta2 v)
//     w = fma(-lr / (1 - beta1^step), m / fma(sqrt(v), 1 / sqrt(1 - beta2^step), eps), w (1 - lr weight_decay))
// with the constants computed in double and rounded once. One pass in the calling thread; callers give threads ranges.
#pragma once

#include <cstdint>

#include "sluice/dtype.h"

namespace sluice {

/// Scalars of one update. Bias corrections come from `step` (1-based), never from running products.
struct AdamwStep {
  std::uint64_t step = 1;
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.0f;
  float gradient_scale = 1.0f;  ///< multiplies the gradient (clip factor); 1 changes no bit
};

/// What a range met: a master at or beyond 0x7f7f8000 in magnitude would round to infinity as bf16 and is refused as a
/// diverged parameter (the caller stops the run).
struct AdamwReport {
  std::uint64_t diverged = 0;  ///< parameters that are NaN, infinite or would round to infinity
};

/// In place on parameter, remainder, exp_avg, exp_avg_sq; gradient is read. All of numel elements, any alignment.
AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const float* gradient, std::int64_t numel);
AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const bf16* gradient, std::int64_t numel);
/// The same with an fp32 parameter that is its own master.
AdamwReport adamw_f32(const AdamwStep& s, float* parameter, float* exp_avg, float* exp_avg_sq, const float* gradient,
                      std::int64_t numel);

/// Split an fp32 value into bf16 + remainder (see above), and back. Exact for all finite values below 0x7f7f8000.
void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel);
void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel);

/// Add the squared norm of x to *sum: blocks of 4096 elements, each summed in a fixed order in double, added in order.
/// Ranges cut at multiples of 4096 elements and passed in order give the same bits as one call.
void add_squared_norm(const float* x, std::int64_t numel, double* sum);

}  // namespace sluice
