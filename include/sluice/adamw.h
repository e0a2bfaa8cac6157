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
// with the constants computed in double and rounded once. Moments of 8 bits are decoded with their decay, and each
// takes the gradient by itself:
//     m = fma((1 - beta1) gradient_scale, gradient, decoded with the scale times beta1)
//     v = fma(h, h, decoded with the scale times beta2), h = (sqrt(1 - beta2) gradient_scale) gradient
// The moments are encoded as sluice/moments.h says; w is made from m and v as they are before that. One pass in the
// calling thread; callers give threads ranges.
#pragma once

#include <cstdint>

#include "sluice/dtype.h"
#include "sluice/moments.h"

namespace sluice {

/// Scalars of one update. Bias corrections come from `step` (1-based), never from running products.
struct AdamwStep {
  std::uint64_t step = 1;
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.0f;
  float gradient_scale = 1.0f;  ///< multiplies the gradient (clip factor); 1 changes no bit
  /// Of the random bits that round moments shorter than fp32: another for each step and tensor, such as
  /// philox(seed, step, tensor), and the same for all ranges of the tensor.
  std::uint64_t rounding_key = 0;
};

/// What a range met: a master at or beyond 0x7f7f8000 in magnitude would round to infinity as bf16 and is refused as a
/// diverged parameter (the caller stops the run).
struct AdamwReport {
  std::uint64_t diverged = 0;  ///< parameters that are NaN, infinite or would round to infinity
};

/// One contiguous range of a tensor with what the update reads and writes; owns nothing. Any alignment.
struct AdamwRange {
  Dtype dtype = Dtype::bf16;          ///< of the parameter: bf16 with remainder, or f32 that is its own master
  Dtype gradient_dtype = Dtype::f32;  ///< f32 or bf16
  MomentFormat moments = MomentFormat::f32;
  void* parameter = nullptr;
  std::int16_t* remainder = nullptr;  ///< of bf16 parameters
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  float* exp_avg_scales = nullptr;  ///< of int8 moments: one for each 256 elements of the range
  float* exp_avg_sq_scales = nullptr;
  const void* gradient = nullptr;
  std::int64_t numel = 0;
  std::uint64_t first_index = 0;  ///< of the range's first element in its tensor; a multiple of 256 with int8
};

/// Updates the range in place; the gradient is read. Cuts of a tensor into ranges change no bit. Wrong dtypes and a
/// first_index that int8 does not allow are bugs of the caller and end the program.
AdamwReport adamw(const AdamwStep& s, const AdamwRange& range);

/// The same with fp32 moments.
AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const float* gradient, std::int64_t numel);
AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const bf16* gradient, std::int64_t numel);
AdamwReport adamw_f32(const AdamwStep& s, float* parameter, float* exp_avg, float* exp_avg_sq, const float* gradient,
                      std::int64_t numel);

/// Gradients as bf16, rounded stochastically as moments in bf16 are, from the low 16 of rounding_bits(key, index) of
/// each element (sluice/moments.h): what bf16 has stays, no finite value becomes infinite, and NaN becomes 0x7fc0. x is
/// elements first_index on of its tensor; cuts of a tensor into ranges change no bit. The key is the tensor's and the
/// step's, and not that of its moments.
void round_gradient(std::uint64_t key, std::uint64_t first_index, const float* x, std::int64_t numel, bf16* rounded);

/// Split an fp32 value into bf16 + remainder (see above), and back. Exact for all finite values below 0x7f7f8000.
void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel);
void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel);

/// Add the squared norm of x to *sum: blocks of 4096 elements, each summed in a fixed order in double, added in order.
/// Ranges cut at multiples of 4096 elements and passed in order give the same bits as one call.
void add_squared_norm(const float* x, std::int64_t numel, double* sum);

}  // namespace sluice
