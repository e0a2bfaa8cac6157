// Numbers as codes of few bits with one fp32 scale per block of neighbours, for what is gathered or reduced between
// ranks (ZeRO++, arXiv 2306.10209: weights in 8 bits, gradients in 4) and for activations that wait away from the
// device.
//
// Codes are symmetric: zero stays zero, and both signs have the same range. A range is cut into blocks from its
// beginning; the last one may be shorter. In fp32, each operation rounded to nearest, half to even:
//     max   = the block's largest magnitude, at least 2^-119 (e4m3: 2^-117) and at most 2^128 - 2^105
//             (0: scale 0 and codes 0; NaN or infinite: scale NaN, codes 0)
//     scale = max / most, code = what is nearest to x * (most / max), half to even; most = 127, 7, or 448 of e4m3
//     value = code * scale
// A code is an integer, or, of 8 bits, a number of OCP's FP8 format E4M3: sign, 4 bits of exponent with bias 7, 3 of
// mantissa, without infinities. Its NaN is never made.
// So one NaN or infinity makes its whole block NaN: neither is ever hidden. x is multiplied with a reciprocal that was
// rounded once, which a division per element would not pay for: values of integers are within scale / 2 of x but for a
// few units of rounding, as with a division, and codes are within -most .. most. The bounds of max keep scales normal
// numbers and the largest value finite. Values that are quantised again keep their codes, but for signs of zeros.
//
// Codes of 8 bits are bytes; of 4 bits two to a byte, the first in the low half. Integers are in two's complement. The
// high half behind an odd last one is 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice {

enum class CodeFormat : std::uint8_t { integer, e4m3 };

struct Quantization {
  int bits = 8;              ///< of a code: 8 or 4; of e4m3 8
  std::int64_t block = 256;  ///< elements that share a scale: a power of two from 32 to 2048
  CodeFormat format = CodeFormat::integer;

  constexpr bool is_valid() const {
    return (bits == 8 || (bits == 4 && format == CodeFormat::integer)) && block >= 32 && block <= 2048 &&
           (block & (block - 1)) == 0;
  }
  /// The largest code.
  constexpr float most() const { return format == CodeFormat::e4m3 ? 448 : bits == 8 ? 127 : 7; }
  bool operator==(const Quantization&) const = default;
};

/// Scales of `numel` elements.
constexpr std::int64_t quantized_blocks(std::int64_t numel, const Quantization& q) {
  return (numel + q.block - 1) / q.block;
}
constexpr std::uint64_t quantized_code_bytes(std::int64_t numel, const Quantization& q) {
  return static_cast<std::uint64_t>(q.bits == 8 ? numel : (numel + 1) / 2);
}
/// Where scales begin that lie behind the codes in one piece of memory, as in a message.
constexpr std::uint64_t quantized_scales_offset_bytes(std::int64_t numel, const Quantization& q) {
  return (quantized_code_bytes(numel, q) + 3) / 4 * 4;
}
/// Of that piece.
constexpr std::uint64_t quantized_bytes(std::int64_t numel, const Quantization& q) {
  return quantized_scales_offset_bytes(numel, q) + 4 * static_cast<std::uint64_t>(quantized_blocks(numel, q));
}

struct QuantizationScale {
  float scale = 0, per_scale = 0;  ///< per_scale 0: all codes are 0
};

/// Of a block whose largest magnitude has these bits: as integers they order magnitudes, infinity and NaN last.
constexpr QuantizationScale quantization_scale(std::uint32_t largest_bits, float most) {
  if (largest_bits == 0) return {};
  if (largest_bits >= 0x7f800000u) return {std::bit_cast<float>(0x7fc00000u), 0};
  const std::uint32_t least_bits = most > 127 ? 0x05000000u : 0x04000000u;
  const float largest = std::bit_cast<float>(std::clamp(largest_bits, least_bits, 0x7f7ffffeu));
  return {largest / most, most / largest};
}

/// E4M3 of a finite number, saturating. Numbers below 2^-6 are multiples of 2^-9, which a sum with 2^14 rounds to;
/// of others the bits that are left out round the rest up, and the exponent's bias changes.
constexpr std::uint8_t e4m3_code(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const std::uint32_t fine =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  const std::uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  const std::uint32_t code = magnitude < 0x3c800000u ? fine : std::min(rounded - (120u << 3), 0x7eu);
  return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | code);
}
/// Of a code that is no NaN. The smallest numbers are made without subnormal ones, which a unit may take for zero.
constexpr float e4m3_value(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  const float value = magnitude < 8 ? std::bit_cast<float>((magnitude << 20) + (121u << 23)) - 0x1p-6f
                                    : std::bit_cast<float>((magnitude << 20) + (120u << 23));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

}  // namespace sluice
