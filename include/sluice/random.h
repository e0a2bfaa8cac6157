// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11). A value is a pure function of (key, index).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace sluice {

constexpr int philox_rounds = 10;
constexpr std::array<std::uint32_t, 2> philox_factors{0xD2511F53u, 0xCD9E8D57u};
constexpr std::array<std::uint32_t, 2> philox_steps{0x9E3779B9u, 0xBB67AE85u};  ///< of the keys, from round to round

/// 128 random bits for counter (c0..c3) under a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                 static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < philox_rounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{philox_factors[0]} * c[0], p1 = std::uint64_t{philox_factors[1]} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += philox_steps[0];
    k1 += philox_steps[1];
  }
  return c;
}

/// Uniform in [0, 1) with 53 bits.
inline double philox_uniform(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  const auto c = philox(key, index, stream);
  const std::uint64_t bits = (static_cast<std::uint64_t>(c[0]) << 32 | c[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

/// Standard normal (Box and Muller, "A note on the generation of random normal deviates", 1958). Two words of a block
/// make two numbers: u = (word / 2 + 1/2) 2^-31 in fp32 for the radius, which stays below 6.7, and the other word for
/// the angle, in 2^-32 turns. kernels/cpu/random.h makes many of them.
inline double philox_normal(std::uint64_t key, std::uint64_t index, std::uint64_t stream) {
  const auto c = philox(key, index / 4, stream);
  const std::uint32_t pair = index % 4 / 2 * 2;
  const float u = (static_cast<float>(c[pair] >> 1) + 0.5f) * 0x1p-31f;
  const double angle = 6.283185307179586476925286766559 * 0x1p-32 * c[pair + 1];
  return std::sqrt(-2.0 * std::log(static_cast<double>(u))) * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace sluice
