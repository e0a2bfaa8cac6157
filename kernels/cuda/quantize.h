// Quantisation of fp32 or bf16 in blocks, as kernels/cpu/quantize.h has it and to the same bits, on device memory, in
// the order of a stream. Faster where addresses are multiples of 16 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"
#include "sluice/quantization.h"

namespace sluice::kernels::cuda {

/// x: [numel]. codes: [quantized_code_bytes(numel, q)], scales: [quantized_blocks(numel, q)]. T: float or bf16.
template <class T>
void quantize(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
              Stream& stream);

/// x: [numel], codes times their scales, rounded to nearest even where T is bf16. T: float or bf16.
template <class T>
void dequantize(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x,
                Stream& stream);
/// sum[i] += the value, fp32: what dequantize and add_f32 would make of it.
void dequantize_add(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                    float* sum, Stream& stream);

}  // namespace sluice::kernels::cuda
