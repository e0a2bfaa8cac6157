// Numbers rounded to multiples of others.
#pragma once

#include <cstdint>

namespace sluice {

/// `unit` is above 0, and of round_up `n + unit` is in range.
constexpr std::uint64_t round_down(std::uint64_t n, std::uint64_t unit) { return n / unit * unit; }
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return round_down(n + unit - 1, unit); }

}  // namespace sluice
