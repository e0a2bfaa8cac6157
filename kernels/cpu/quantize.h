// Quantisation of fp32 or bf16 in blocks (sluice/quantization.h says how), in the calling thread's OpenMP team. Results
// do not depend on the number of threads, on addresses or on the SIMD target, and CUDA's (kernels/cuda/quantize.h) have
// the same bits; which NaN a value is, is not said. Outputs do not overlap inputs.
#pragma once

#include <cstdint>

#include "sluice/dtype.h"
#include "sluice/quantization.h"

namespace sluice::kernels {

/// x: [numel]. codes: [quantized_code_bytes(numel, q)], scales: [quantized_blocks(numel, q)]. T: float or bf16.
template <class T>
void quantize(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales);

/// x: [numel], codes times their scales, rounded to nearest even where T is bf16. T: float or bf16.
template <class T>
void dequantize(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x);
/// sum[i] += the value, fp32: what dequantize and add_f32 would make of it.
void dequantize_add(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                    float* sum);

}  // namespace sluice::kernels
