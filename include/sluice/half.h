// IEEE half precision as its 16 bits: storage only, arithmetic happens in float.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

/// Exact.
constexpr float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

/// Round to nearest even; from 65520 on infinity. NaN becomes the quiet NaN with its sign kept.
constexpr std::uint16_t float_to_half(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f), magnitude = u & 0x7fffffffu;
  const std::uint32_t sign = u >> 16 & 0x8000u;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14, in units of 2^-24: adding 2^23 leaves whole ones
    const float units = std::bit_cast<float>(magnitude) * 0x1.0p24f;
    half = static_cast<std::uint32_t>((units + 0x1.0p23f) - 0x1.0p23f);
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace sluice
