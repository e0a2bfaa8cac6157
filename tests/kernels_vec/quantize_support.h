// What sluice/quantization.h says, in double and one element after the other, and blocks that try it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "sluice/quantization.h"
#include "values.h"

namespace sluice::test {

inline std::vector<Quantization> quantizations() {
  std::vector<Quantization> all;
  for (const auto& [bits, format] :
       {std::pair(8, CodeFormat::integer), std::pair(4, CodeFormat::integer), std::pair(8, CodeFormat::e4m3)})
    for (std::int64_t block = 32; block <= 2048; block *= 2) all.push_back({bits, block, format});
  return all;
}

inline std::string name(const Quantization& q) {
  return (q.format == CodeFormat::e4m3 ? "e4m3, " : "") + std::to_string(q.bits) + " bits, blocks of " +
         std::to_string(q.block);
}

/// What OCP's format says of a code, whose NaN are 0x7f and 0xff.
inline double e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 0x80 ? magnitude : -magnitude;
}
/// The nearest of all, of two that are equally near the one with the even code; the largest for what is beyond.
inline std::uint8_t nearest_e4m3(double x) {
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 0x7f; ++code) {
    const double nearer = std::abs(std::abs(x) - e4m3(best)) - std::abs(std::abs(x) - e4m3(code));
    if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

struct Quantized {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  double code(std::size_t i, const Quantization& q) const {
    if (q.format == CodeFormat::e4m3) return e4m3(codes[i]);
    if (q.bits == 8) return static_cast<std::int8_t>(codes[i]);
    const int half = codes[i / 2] >> (i % 2 * 4) & 15;
    return half < 8 ? half : half - 16;
  }
  /// Exact in double, so that it is rounded once.
  float value(std::size_t i, const Quantization& q) const {
    return static_cast<float>(code(i, q) * double{scales[i / static_cast<std::size_t>(q.block)]});
  }
};

/// Quotients of floats that are rounded to double and then to float are rounded as if once.
template <class T>
Quantized quantized(const std::vector<T>& x, const Quantization& q) {
  const auto block = static_cast<std::size_t>(q.block);
  const bool floats = q.format == CodeFormat::e4m3;
  const double most = floats ? 448 : q.bits == 8 ? 127 : 7;
  Quantized out;
  out.codes.resize(quantized_code_bytes(std::ssize(x), q));
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    double largest = 0;
    bool finite = true;
    for (std::size_t i = begin; i < std::min(x.size(), begin + block); ++i) {
      finite = finite && std::isfinite(value(x[i]));
      largest = std::max(largest, std::abs(value(x[i])));
    }
    if (!finite || largest == 0) {
      out.scales.push_back(finite ? 0 : std::bit_cast<float>(0x7fc00000u));
      continue;
    }
    largest = std::clamp(largest, floats ? 0x1p-117 : 0x1p-119, 0x1p128 - 0x1p105);
    out.scales.push_back(static_cast<float>(largest / most));
    const double per_scale = static_cast<float>(most / largest);
    for (std::size_t i = begin; i < std::min(x.size(), begin + block); ++i) {
      const float scaled = static_cast<float>(value(x[i]) * per_scale);
      if (floats) {
        out.codes[i] = nearest_e4m3(scaled);
        continue;
      }
      const int code = static_cast<int>(std::nearbyint(scaled));
      if (q.bits == 8)
        out.codes[i] = static_cast<std::uint8_t>(code);
      else
        out.codes[i / 2] = static_cast<std::uint8_t>(out.codes[i / 2] | (code & 15) << (i % 2 * 4));
    }
  }
  return out;
}

/// Numbers of every kind. Each `block` of them is normal, or of many sizes, halfway between codes, zero, denormal,
/// tiny, huge, or has a NaN or an infinity among its elements.
template <class T>
std::vector<T> numbers(std::int64_t n, std::int64_t block, std::uint64_t seed) {
  std::vector<T> x = normal<T>(n, seed);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = i % block;
    const std::uint64_t kind = philox(seed, static_cast<std::uint64_t>(i / block), 1)[0] % 12;
    const float sign = i % 3 == 0 ? -1.0f : 1.0f;
    float v = static_cast<float>(value(x[static_cast<std::size_t>(i)]));
    if (kind == 0) v = std::ldexp(v, static_cast<int>(at * 37 % 60) - 30);
    if (kind == 1) v = at == 0 ? 127.0f : sign * (static_cast<float>(at % 127) + 0.5f);
    if (kind == 2) v = at == 0 ? 7.0f : sign * (static_cast<float>(at % 7) + 0.5f);
    if (kind == 3) v = sign * 0.0f;
    if (kind == 4) v *= 1e-42f;
    if (kind == 5) v *= 0x1p-119f;
    if (kind == 6) v = at == 5 ? std::numeric_limits<float>::max() : sign * 3e38f * static_cast<float>(at) / 2048;
    if (kind == 7 && at == 7) v = sign * std::numeric_limits<float>::infinity();
    if (kind == 8 && at == block - 2) v = std::bit_cast<float>(i % 3 == 0 ? 0xff800001u : 0x7fffffffu);
    x[static_cast<std::size_t>(i)] = stored<T>(v);
  }
  return x;
}

/// Around the block, with odd ends, and of several blocks.
inline std::vector<std::int64_t> lengths(const Quantization& q) {
  const std::int64_t b = q.block;
  return {0, 1, 2, 15, 31, b - 1, b, b + 1, 2 * b + 17, 5 * b + b / 2, 9 * b + 3};
}

inline bool same_number(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
inline bool same_number(bf16 a, bf16 b) { return same_number(to_float(a), to_float(b)); }

template <class T>
void expect_same_numbers(const std::vector<T>& want, const std::vector<T>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(same_number(want[i], got[i])) << i << ": want " << value(want[i]) << " got " << value(got[i]);
}

}  // namespace sluice::test
