#include "kernels/cpu/random.h"

#include <algorithm>
#include <cmath>

#include "support.h"

namespace sluice::test {
namespace {

using Words = std::array<std::uint32_t, 4>;

/// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (Words{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, UniformStaysInRangeAndCentred) {
  double sum = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double u = philox_uniform(5, i, 1);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.004);
}

TEST(Philox, NormalHasUnitVarianceAndIsFinite) {
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double z = philox_normal(5, i, 1);
    ASSERT_TRUE(std::isfinite(z));
    sum += z;
    squares += z * z;
  }
  EXPECT_NEAR(sum / 100000, 0, 0.013);
  EXPECT_NEAR(squares / 100000, 1, 0.02);
}

std::vector<float> normal_numbers(std::uint64_t key, std::uint64_t stream, std::uint64_t first, std::size_t count) {
  std::vector<float> out(count);
  kernels::fill_normal(key, stream, first, 1.0f, out);
  return out;
}

TEST(FillNormal, is_philox_normal_in_fp32) {
  // the last one goes beyond what the counter's lower word holds
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{4093}, (std::uint64_t{1} << 34) - 5000}) {
    const std::vector<float> got = normal_numbers(0x123456789abcdef0u, 0xfedcba9876543210u, first, 20000);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = philox_normal(0x123456789abcdef0u, first + i, 0xfedcba9876543210u);
      ASSERT_NEAR(got[i], want, 1e-6 * std::abs(want)) << first << " + " << i;
    }
  }
}

TEST(FillNormal, bits_do_not_depend_on_target_threads_or_cuts) {
  const std::vector<float> want = normal_numbers(3, 1, 0, 20000);
  with_targets([&] {
    with_thread_counts([&] {
      for (const std::size_t cut : {61, 4096, 4097, 20000}) {
        std::vector<float> got(want.size());
        for (std::size_t first = 0; first < got.size(); first += cut)
          kernels::fill_normal(3, 1, first, 1.0f, std::span(got).subspan(first, std::min(cut, got.size() - first)));
        ASSERT_TRUE(same_bytes(got, want)) << "in pieces of " << cut;
      }
    });
  });
}

/// What is expected of n independent standard normal numbers, within about four deviations of each statistic: the seed
/// is fixed, so that a generator that passes once passes always.
TEST(FillNormal, numbers_are_normal) {
  constexpr std::size_t n = 1 << 22;
  constexpr double root = 1 << 11;
  const std::vector<float> z = normal_numbers(7, 0, 0, n);
  double powers[5] = {}, beyond3 = 0, beyond4 = 0;
  for (const double x : z) {
    for (int p = 1; p <= 4; ++p) powers[p] += std::pow(x, p) / n;
    beyond3 += std::abs(x) > 3 ? 1 : 0;
    beyond4 += std::abs(x) > 4 ? 1 : 0;
  }
  EXPECT_NEAR(powers[1], 0, 4 / root);
  EXPECT_NEAR(powers[2], 1, 4 * std::sqrt(2) / root);
  EXPECT_NEAR(powers[3], 0, 4 * std::sqrt(15) / root);
  EXPECT_NEAR(powers[4], 3, 4 * std::sqrt(96) / root);
  for (const auto& [count, at] : {std::pair{beyond3, 3.0}, std::pair{beyond4, 4.0}}) {
    const double expected = n * std::erfc(at / std::sqrt(2));
    EXPECT_NEAR(count, expected, 4 * std::sqrt(expected)) << "beyond " << at;
  }
}

TEST(FillNormal, passes_the_test_of_kolmogorov_and_smirnov) {
  std::vector<float> z = normal_numbers(8, 0, 0, 1 << 20);
  const auto n = static_cast<double>(z.size());
  std::sort(z.begin(), z.end());
  double distance = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double cumulative = std::erfc(-z[i] / std::sqrt(2)) / 2, below = static_cast<double>(i) / n;
    distance = std::max({distance, cumulative - below, below + 1 / n - cumulative});
  }
  EXPECT_LT(distance * std::sqrt(n), 1.63);  // 99 of 100 samples
}

TEST(FillNormal, neighbours_streams_and_keys_are_uncorrelated) {
  constexpr std::size_t n = 1 << 20;
  const std::vector<float> z = normal_numbers(9, 4, 0, n + 8);
  const auto expect_uncorrelated = [&](const float* other, const char* what, int by) {
    double values = 0, squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = z[i], y = other[i];
      values += x * y;
      squares += (x * x - 1) * (y * y - 1) / 2;
    }
    EXPECT_NEAR(values / n, 0, 4 / std::sqrt(n)) << what << " " << by;
    EXPECT_NEAR(squares / n, 0, 4 / std::sqrt(n)) << "squares, " << what << " " << by;
  };
  for (const int lag : {1, 2, 3, 4, 5, 8}) expect_uncorrelated(z.data() + lag, "lag", lag);
  expect_uncorrelated(normal_numbers(9, 5, 0, n).data(), "stream", 5);
  expect_uncorrelated(normal_numbers(10, 4, 0, n).data(), "key", 10);
}

}  // namespace
}  // namespace sluice::test
