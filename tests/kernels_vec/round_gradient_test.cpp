// Gradients in bf16: the contract of one element, on every SIMD target; exact values stay, and what is rounded is right
// in the mean.
#include <bit>
#include <limits>

#include "adamw_support.h"
#include "support.h"

namespace sluice::test {
namespace {

constexpr std::uint64_t key = 0x9d5c3a1742e8b60full;
constexpr std::uint16_t guard = 0x4321;

/// Elements `first` to `first + x.size()` of a tensor, `shift` elements from an aligned address, with guards around.
std::vector<std::uint16_t> rounded(const std::vector<float>& x, std::uint64_t first = 0, std::size_t shift = 0,
                                   std::uint64_t with = key) {
  std::vector<float> from(x.size() + shift);
  std::copy(x.begin(), x.end(), from.begin() + static_cast<std::ptrdiff_t>(shift));
  std::vector<bf16> to(x.size() + shift + 32, bf16{guard});
  round_gradient(with, first, from.data() + shift, static_cast<std::int64_t>(x.size()), to.data() + shift);
  std::vector<std::uint16_t> out;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const bool inside = i >= shift && i < shift + x.size();
    if (inside) {
      out.push_back(to[i].bits);
    } else {
      EXPECT_EQ(to[i].bits, guard) << x.size() << " elements, at " << i;
    }
  }
  return out;
}

std::vector<float> some_gradient(std::int64_t n) { return normal<float>(n, 5, 1e-3); }

TEST(RoundGradient, FollowsTheContractToTheBit) {
  with_targets([&] {
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{4096}, (std::uint64_t{1} << 40) - 100})
      for (const std::int64_t n : lengths()) {
        const std::vector<float> x = some_gradient(n);
        const std::vector<std::uint16_t> got = rounded(x, first);
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_EQ(got[i], round_bf16(x[i], rounding_bits(key, first + i) & 0xffffu))
              << n << " elements from " << first << ", at " << i;
      }
  });
}

TEST(RoundGradient, EveryMagnitudeFollowsTheContract) {
  with_targets([&] {
    std::vector<float> x;
    for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 0x1357u)
      for (const std::uint32_t sign : {0u, 0x80000000u}) x.push_back(std::bit_cast<float>(bits | sign));
    for (const std::uint32_t bits : {0x7f7effffu, 0x7f7f0000u, 0x7f7f8000u, 0x7f7fffffu, 1u, 0x007fffffu})
      x.push_back(std::bit_cast<float>(bits));
    const std::vector<std::uint16_t> got = rounded(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(got[i], round_bf16(x[i], rounding_bits(key, i) & 0xffffu)) << x[i];
      ASSERT_TRUE(std::isfinite(to_float({got[i]}))) << x[i];
    }
  });
}

TEST(RoundGradient, WhatBf16HasStays) {
  with_targets([&] {
    std::vector<float> x;
    for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) x.push_back(to_float({static_cast<std::uint16_t>(bits)}));
    const std::vector<std::uint16_t> got = rounded(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_EQ(got[i], 0x7fc0u);
      } else {
        ASSERT_EQ(got[i], i);
      }
    }
  });
}

TEST(RoundGradient, CutsAndAlignmentChangeNoBit) {
  with_targets([&] {
    const std::vector<float> x = some_gradient(1100);
    const std::vector<std::uint16_t> whole = rounded(x, 77);
    for (const std::size_t shift : {1u, 3u, 7u, 16u}) ASSERT_EQ(rounded(x, 77, shift), whole) << shift;
    for (std::size_t cut = 1; cut < x.size(); cut += 53) {
      const auto at = x.begin() + static_cast<std::ptrdiff_t>(cut);
      std::vector<std::uint16_t> parts = rounded({x.begin(), at}, 77);
      const std::vector<std::uint16_t> rest = rounded({at, x.end()}, 77 + cut);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << cut;
    }
  });
}

/// Over many keys each element is its value in the mean, and never further from it than the two neighbours in bf16.
TEST(RoundGradient, IsUnbiased) {
  const std::vector<float> x = some_gradient(256);
  constexpr int keys = 20000;
  std::vector<double> mean(x.size());
  for (std::uint64_t k = 0; k < keys; ++k) {
    const std::vector<std::uint16_t> got = rounded(x, 0, 0, k);
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] += to_float({got[i]}) / double{keys};
  }
  double drift = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    // half a step of bf16 is at most 1/256 of the value; that over sqrt(20000) is 2.8e-5: five times that
    EXPECT_NEAR(mean[i] / double{x[i]}, 1, 1.4e-4) << i;
    drift += (mean[i] / double{x[i]} - 1) / static_cast<double>(x.size());
  }
  EXPECT_NEAR(drift, 0, 1e-5);
}

}  // namespace
}  // namespace sluice::test
