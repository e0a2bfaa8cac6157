// Half precision against the compiler's own.
#include "sluice/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice {
namespace {

TEST(Half, every_value_comes_back) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value)))) << bits;
    else
      EXPECT_EQ(float_to_half(value), half) << bits;
  }
}

TEST(Half, rounds_to_nearest_even) {
  for (std::uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const auto below = static_cast<std::uint16_t>(bits), above = static_cast<std::uint16_t>(bits + 1);
    const float middle = (half_to_float(below) + half_to_float(above)) / 2;
    const std::uint16_t even = bits % 2 == 0 ? below : above;
    ASSERT_EQ(float_to_half(middle), even) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0f)), below) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9f)), above) << bits;
    ASSERT_EQ(float_to_half(-middle), even | 0x8000u) << bits;
  }
}

TEST(Half, what_is_too_large_is_infinite) {
  EXPECT_EQ(float_to_half(65519.996f), 0x7bffu);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00u);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00u);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7c00u);
  EXPECT_EQ(float_to_half(1e-30f), 0u);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::denorm_min()), 0x8000u);
}

}  // namespace
}  // namespace sluice
