// Element types of tensors and their sizes in bytes.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

enum class Dtype : std::uint8_t { f32, bf16, f16, i32 };

constexpr std::uint64_t dtype_bytes(Dtype t) { return t == Dtype::f32 || t == Dtype::i32 ? 4 : 2; }
constexpr const char* dtype_name(Dtype t) {
  switch (t) {
    case Dtype::f32: return "f32";
    case Dtype::bf16: return "bf16";
    case Dtype::f16: return "f16";
    case Dtype::i32: return "i32";
  }
  return "?";
}

/// bfloat16 as its 16 bits: storage only, arithmetic happens in float.
struct bf16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(bf16 v) { return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16); }

/// Round to nearest even; NaN becomes the quiet NaN with its sign kept.
constexpr bf16 to_bf16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(((u >> 16) & 0x8000u) | 0x7fc0u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace sluice
