// The ops that quantize, piece by piece, with the kernels of any device.
#pragma once

#include <cstdint>

#include "offload/run/executor.h"
#include "sluice/half.h"
#include "sluice/quantization.h"

namespace sluice {

constexpr bool quantizes(OpKind kind) { return kind >= OpKind::quantize && kind <= OpKind::dequantize_sum; }

/// `kernels` has quantize, dequantize and dequantize_add as kernels/cpu/quantize.h has them.
template <class Kernels>
void each_quantized(const Op& op, const Operand& src, const Operand& dst, const Kernels& kernels) {
  const auto numel = static_cast<std::int64_t>(op.numel);
  const Quantization& q = op.quantization;
  const std::uint64_t packed_bytes = quantized_bytes(numel, q), scales = quantized_scales_offset_bytes(numel, q);
  const auto pieces = static_cast<std::uint64_t>(op.pieces);
  const auto packed = [&](const Operand& operand, std::uint64_t at) { return operand.data + at * packed_bytes; };
  const auto codes_of = [](std::byte* piece) { return reinterpret_cast<std::uint8_t*>(piece); };
  const auto scales_of = [&](std::byte* piece) { return reinterpret_cast<float*>(piece + scales); };
  const auto each = [&]<class T>(T*, const Operand& values) {
    for (std::uint64_t p = 0; p < pieces; ++p) {
      T* at = reinterpret_cast<T*>(values.data) + p * op.numel;
      if (op.kind == OpKind::quantize) {
        std::byte* to = packed(dst, p);
        kernels.quantize(static_cast<const T*>(at), numel, q, codes_of(to), scales_of(to));
      } else {
        std::byte* from = packed(src, p);
        kernels.dequantize(static_cast<const std::uint8_t*>(codes_of(from)), static_cast<const float*>(scales_of(from)),
                           numel, q, at);
      }
    }
  };
  if (op.kind != OpKind::dequantize_sum) {
    const Operand& values = op.kind == OpKind::quantize ? src : dst;
    const bool is_f32 = values.bytes == pieces * op.numel * sizeof(float);
    return is_f32 ? each(static_cast<float*>(nullptr), values) : each(static_cast<bf16*>(nullptr), values);
  }
  const std::uint64_t sums = dst.bytes / (op.numel * sizeof(float));
  for (std::uint64_t s = 0; s < sums; ++s) {
    float* sum = reinterpret_cast<float*>(dst.data) + s * op.numel;
    for (std::uint64_t p = 0; p < pieces; ++p) {
      std::byte* from = packed(src, s * pieces + p);
      const std::uint8_t* codes = codes_of(from);
      const float* scale = scales_of(from);
      p == 0 ? kernels.dequantize(codes, scale, numel, q, sum) : kernels.dequantize_add(codes, scale, numel, q, sum);
    }
  }
}

}  // namespace sluice
