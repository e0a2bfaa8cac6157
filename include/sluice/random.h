// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11). A value is a pure function of (key, index).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace sluice {

/// 128 random bits for counter (c0..c3) under a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Uniform in [0, 1) with 53 bits.
inline double philox_uniform(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  const auto c = philox(key, index, stream);
  const std::uint64_t bits = (static_cast<std::uint64_t>(c[0]) << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

/// Standard normal (Box-Muller).
inline double philox_normal(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  const auto c = philox(key, index, stream);
  const double u = (static_cast<double>((static_cast<std::uint64_t>(c[0]) << 32 | c[1]) >> 11) + 1.0) * 0x1.0p-53;
  const double v = static_cast<double>((static_cast<std::uint64_t>(c[2]) << 32 | c[3]) >> 11) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925286766559 * v);
}

}  // namespace sluice
