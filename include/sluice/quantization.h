// Numbers as small integers with one fp32 scale per block of neighbours, for what is gathered or reduced between ranks
// (ZeRO++, arXiv 2306.10209: weights in 8 bits, gradients in 4) and for smaller copies between tiers.
//
// Codes are symmetric: zero stays zero, and both signs have the same range. A range is cut into blocks from its
// beginning; the last one may be shorter. In fp32, each operation rounded to nearest, half to even:
//     max   = the block's largest magnitude, at least 2^-119 and at most 2^128 - 2^105
//             (0: scale 0 and codes 0; NaN or infinite: scale NaN, codes 0)
//     scale = max / most, code = the integer nearest to x * (most / max), half to even; most = 127 or 7
//     value = code * scale
// So one NaN or infinity makes its whole block NaN: neither is ever hidden. x is multiplied with a reciprocal that was
// rounded once, which a division per element would not pay for: values are within scale / 2 of x but for a few units
// of rounding, as with a division, and codes are within -most .. most. The bounds of max keep scales normal numbers and
// the largest value finite. Values that are quantised again keep their codes.
//
// Codes of 8 bits are bytes; of 4 bits two to a byte, both in two's complement, the first in the low half. The high
// half behind an odd last one is 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sluice {

struct Quantization {
  int bits = 8;              ///< of a code: 8 or 4
  std::int64_t block = 256;  ///< elements that share a scale: a power of two from 32 to 2048

  constexpr bool is_valid() const {
    return (bits == 8 || bits == 4) && block >= 32 && block <= 2048 && (block & (block - 1)) == 0;
  }
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
constexpr QuantizationScale quantization_scale(std::uint32_t largest_bits, int bits) {
  if (largest_bits == 0) return {};
  if (largest_bits >= 0x7f800000u) return {std::bit_cast<float>(0x7fc00000u), 0};
  const float most = bits == 8 ? 127 : 7,
              largest = std::bit_cast<float>(std::clamp(largest_bits, 0x04000000u, 0x7f7ffffeu));
  return {largest / most, most / largest};
}

}  // namespace sluice
