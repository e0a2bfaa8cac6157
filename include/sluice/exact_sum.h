// A sum of doubles without rounding: neither the order in which they are added nor how they are divided among ranks
// changes a bit of it.
//
// The sum is kept in fixed point: 32 bits a digit, from the least bit of the smallest double to above the largest one.
// Digits have room for 2^31 additions; what they carry is settled when the value is asked for.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace sluice {

/// Integers alone, so that adding two of them word by word, in any order, adds the sums.
struct ExactSum {
  static constexpr int digits = 68;  ///< 2098 bits of a double's range, and room above
  std::array<std::int64_t, digits> digit{};
  std::int64_t above = 0, below = 0, nan = 0;  ///< how many were infinite, or no number

  void add(double x) {
    if (!std::isfinite(x)) {
      ++(std::isnan(x) ? nan : x > 0 ? above : below);
      return;
    }
    const auto bits = std::bit_cast<std::uint64_t>(x);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    const std::uint64_t mantissa = (bits & 0xfffffffffffff) | (exponent > 0 ? std::uint64_t{1} << 52 : 0);
    const int shift = exponent > 0 ? exponent - 1 : 0;  // of the mantissa's last bit above the least one, 2^-1074
    const int at = shift / 32, within = shift % 32;
    const std::int64_t sign = bits >> 63 ? -1 : 1;
    constexpr std::uint64_t low32 = 0xffffffff;
    const std::uint64_t low = (mantissa & low32) << within, high = (mantissa >> 32) << within;
    digit[static_cast<std::size_t>(at)] += sign * static_cast<std::int64_t>(low & low32);
    digit[static_cast<std::size_t>(at) + 1] += sign * static_cast<std::int64_t>((low >> 32) + (high & low32));
    digit[static_cast<std::size_t>(at) + 2] += sign * static_cast<std::int64_t>(high >> 32);
  }

  void add(const ExactSum& other) {
    const std::span<std::int64_t> mine = words();
    const std::span<const std::int64_t> theirs = other.words();
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += theirs[i];
  }

  /// Rounded once, to nearest, ties to even.
  double value() const;

  static constexpr std::size_t word_count = digits + 3;
  std::span<std::int64_t> words() { return {digit.data(), word_count}; }
  std::span<const std::int64_t> words() const { return {digit.data(), word_count}; }
};
static_assert(sizeof(ExactSum) == ExactSum::word_count * sizeof(std::int64_t));

inline double ExactSum::value() const {
  if (nan > 0 || (above > 0 && below > 0)) return std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (above > 0 || below > 0) return above > 0 ? infinity : -infinity;
  // Digits from 0 to 2^32 - 1, and a sign.
  std::array<std::uint32_t, digits> d{};
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < digit.size(); ++i) {
    const std::int64_t sum = digit[i] + carry;
    d[i] = static_cast<std::uint32_t>(sum);
    carry = sum >> 32;
  }
  const bool negative = carry < 0;
  if (negative) {
    std::uint64_t borrow = 1;
    for (std::uint32_t& each : d) {
      const std::uint64_t flipped = static_cast<std::uint64_t>(static_cast<std::uint32_t>(~each)) + borrow;
      each = static_cast<std::uint32_t>(flipped);
      borrow = flipped >> 32;
    }
  }
  int top = digits - 1;
  while (top >= 0 && d[static_cast<std::size_t>(top)] == 0) --top;
  if (top < 0) return 0;
  const auto bit_at = [&](int i) { return i < 0 ? 0u : d[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1u; };
  const int highest = top * 32 + std::bit_width(d[static_cast<std::size_t>(top)]) - 1;
  const int lowest = std::max(highest - 52, 0);  // of the mantissa; below 2^-1022 there are fewer bits
  std::uint64_t mantissa = 0;
  for (int i = highest; i >= lowest; --i) mantissa = mantissa << 1 | bit_at(i);
  bool sticky = false;
  for (int i = 0; i < lowest - 1 && !sticky; ++i) sticky = bit_at(i) != 0;
  if (bit_at(lowest - 1) && (sticky || (mantissa & 1))) ++mantissa;
  const double rounded = std::ldexp(static_cast<double>(mantissa), lowest - 1074);
  return negative ? -rounded : rounded;
}

}  // namespace sluice
