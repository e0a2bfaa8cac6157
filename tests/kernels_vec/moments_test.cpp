// What short formats of moments promise: random bits that are uniform and independent, averages that do not drift,
// small values that survive.
#include "adamw_support.h"
#include "support.h"

namespace sluice::test {
namespace {

constexpr std::uint64_t key = 0x9d5c3a1742e8b60full;

/// Written down once: the bits are a contract between targets and versions.
TEST(RoundingBits, AreWhatTheyWere) {
  EXPECT_EQ(rounding_bits(0, 0), 0x500b998du);
  EXPECT_EQ(rounding_bits(key, 0), 0x1e67a596u);
  EXPECT_EQ(rounding_bits(key, 257), 0x98b08730u);
  EXPECT_EQ(rounding_bits(key, (std::uint64_t{1} << 40) + 3), 0x421954dau);
}

/// Pearson's statistic of counts over equally likely cells, as standard deviations from its mean.
double chi_square_deviation(const std::vector<std::uint32_t>& counts) {
  double total = 0, sum = 0;
  for (const std::uint32_t c : counts) total += c;
  const double each = total / static_cast<double>(counts.size()), cells = static_cast<double>(counts.size()) - 1;
  for (const std::uint32_t c : counts) sum += (c - each) * (c - each) / each;
  return (sum - cells) / std::sqrt(2 * cells);
}

TEST(RoundingBits, EveryByteIsUniform) {
  for (const unsigned shift : {0u, 8u, 16u, 24u}) {
    std::vector<std::uint32_t> counts(256);
    for (std::uint64_t i = 0; i < (1u << 20); ++i) ++counts[rounding_bits(key, i) >> shift & 0xffu];
    EXPECT_LT(std::abs(chi_square_deviation(counts)), 5) << "bits from " << shift;
  }
}

/// The leading bits of two elements, steps or moments together, over many steps: 64 equally likely pairs.
TEST(RoundingBits, ElementsBlocksStepsAndMomentsAreIndependentInPairs) {
  const auto check = [](const char* what, auto first, auto second) {
    std::vector<std::uint32_t> counts(64);
    for (std::uint64_t i = 0; i < (1u << 18); ++i) ++counts[(first(i) & 7u) << 3 | (second(i) & 7u)];
    EXPECT_LT(std::abs(chi_square_deviation(counts)), 5) << what;
  };
  // top of 16 and 19 low bits
  const auto m = [](std::uint64_t step, std::uint64_t i) { return rounding_bits(key + step, i) >> 13; };
  const auto v = [](std::uint64_t step, std::uint64_t i) { return rounding_bits(key + step, i) >> 29; };
  for (const std::uint64_t apart : {1, 2, 16, 32, 255, 256, 512, 4096}) {
    check(
        "v of elements apart", [&](auto i) { return v(i, i); }, [&](auto i) { return v(i, i + apart); });
    check(
        "m of elements apart", [&](auto i) { return m(i, i); }, [&](auto i) { return m(i, i + apart); });
    check(
        "v of two elements", [&](auto i) { return v(i, 5); }, [&](auto i) { return v(i, 5 + apart); });
  }
  check(
      "moments", [&](auto i) { return m(i, i); }, [&](auto i) { return v(i, i); });
  check(
      "moments of a step", [&](auto i) { return m(0, i); }, [&](auto i) { return v(0, i); });
  check(
      "steps", [&](auto i) { return v(i, i); }, [&](auto i) { return v(i + 1, i); });
  check(
      "steps, one element", [&](auto i) { return v(i, 5); }, [&](auto i) { return v(i + 1, 5); });
  check(
      "blocks of a step", [&](auto i) { return v(0, 256 * i + 5); }, [&](auto i) { return v(0, 256 * (i + 1) + 5); });
}

/// Mean and spread over n elements and the last steps of a run with normal gradients.
struct Averages {
  double m = 0, v = 0;
};
Averages run(MomentFormat moments, float beta2, int steps) {
  Tensor t({Dtype::bf16, Dtype::f32, moments}, 1024);
  Averages sum;
  for (int step = 1; step <= steps; ++step) {
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      // sizes over two decades within each block, a mean of half the deviation
      const double size = std::pow(10.0, -2.0 * static_cast<double>(i % 64) / 64);
      t.set_gradient(i, static_cast<float>(size * (0.5 + philox_normal(7, static_cast<std::uint64_t>(i), step))));
    }
    AdamwStep s = some_step(static_cast<std::uint64_t>(step), 1);
    s.beta2 = beta2;
    s.rounding_key = philox(3, static_cast<std::uint64_t>(step), 0)[0];
    t.update(s);
    if (step <= steps / 2) continue;
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const double size = std::pow(10.0, -2.0 * static_cast<double>(i % 64) / 64);
      sum.m += t.exp_avg(i) / size;
      sum.v += t.exp_avg_sq(i) / (size * size);
    }
  }
  const double samples = static_cast<double>(t.numel()) * (steps - steps / 2);
  return {sum.m / samples, sum.v / samples};
}

/// With beta2 = 0.999 an average moves by a thousandth per step, less than half a code: rounding to nearest would
/// leave it where it began.
TEST(ShortMoments, LongAveragesDoNotDrift) {
  for (const float beta2 : {0.95f, 0.999f}) {
    const Averages want = run(MomentFormat::f32, beta2, 3000);
    for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::int8}) {
      const Averages got = run(format, beta2, 3000);
      EXPECT_NEAR(got.m / want.m, 1, 0.01) << moment_format_name(format) << ", beta2 " << beta2;
      EXPECT_NEAR(got.v / want.v, 1, 0.01) << moment_format_name(format) << ", beta2 " << beta2;
    }
  }
}

/// The mean over many keys of what one value becomes is the value.
TEST(ShortMoments, RoundingIsUnbiased) {
  for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::int8}) {
    constexpr std::int64_t n = 256;
    std::vector<double> m(n), v(n);
    constexpr int keys = 4000;
    for (int k = 0; k < keys; ++k) {
      Tensor t({Dtype::f32, Dtype::f32, format}, n);
      for (std::int64_t i = 0; i < n; ++i)
        t.set_gradient(i, static_cast<float>((i % 2 == 0 ? 1 : -1) * std::exp(-0.02 * static_cast<double>(i))));
      AdamwStep s = some_step(1, 1);
      s.rounding_key = static_cast<std::uint64_t>(k);
      t.update(s);
      for (std::int64_t i = 0; i < n; ++i) {
        m[static_cast<std::size_t>(i)] += t.exp_avg(i) / double{keys};
        v[static_cast<std::size_t>(i)] += t.exp_avg_sq(i) / double{keys};
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      Scalar e(0, 0, 0);
      e.update(some_step(1, 1), static_cast<float>((i % 2 == 0 ? 1 : -1) * std::exp(-0.02 * static_cast<double>(i))));
      // a code is 1/8 of the value at most, and half of that over sqrt(4000) is 1/1000: five times that
      EXPECT_NEAR(m[static_cast<std::size_t>(i)] / e.m, 1, 0.005) << moment_format_name(format) << " at " << i;
      EXPECT_NEAR(v[static_cast<std::size_t>(i)] / e.v, 1, 0.005) << moment_format_name(format) << " at " << i;
    }
  }
}

/// One element a million times larger than the others of its block, in every step.
TEST(Int8Moments, SmallValuesSurviveBesideALargeOne) {
  with_targets([&] {
    Tensor t({Dtype::bf16, Dtype::f32, MomentFormat::int8}, 256);
    for (std::uint64_t step = 1; step <= 200; ++step) {
      for (std::int64_t i = 0; i < 256; ++i) t.set_gradient(i, i == 100 ? 1.0f : 1e-6f);
      t.update(some_step(step, 1));
      for (std::int64_t i = 0; i < 256; ++i) {
        ASSERT_GT(t.code_sq(i), 0) << i;
        // never below 1/1008 of the largest denominator, whatever exp_avg was rounded to
        ASSERT_LT(std::abs(t.exp_avg(i)) / std::sqrt(t.exp_avg_sq(i)), 5.0f) << i;
      }
    }
  });
}

TEST(Int8Moments, TheLargestOfABlockKeepsItsValue) {
  Tensor t({Dtype::bf16, Dtype::f32, MomentFormat::int8}, 256);
  for (std::int64_t i = 0; i < 256; ++i) t.set_gradient(i, i == 100 ? -3.7f : 0.1f);
  t.update(some_step(1, 1));
  Scalar e(0, 0, 0);
  e.update(some_step(1, 1), -3.7f);
  EXPECT_NEAR(t.exp_avg(100) / e.m, 1, 5e-6);
  EXPECT_NEAR(t.exp_avg_sq(100) / e.v, 1, 5e-6);
}

TEST(Bf16Moments, NoFiniteValueBecomesInfinite) {
  with_targets([&] {
    for (const float x : {std::numeric_limits<float>::max(), std::bit_cast<float>(0x7f7f0000u), 3.3e38f}) {
      Tensor t({Dtype::f32, Dtype::f32, MomentFormat::bf16}, 300);
      AdamwStep s = some_step(1, 1);
      s.beta1 = 0;
      for (std::int64_t i = 0; i < 300; ++i) t.set_gradient(i, i % 2 == 0 ? x : -x);
      t.update(s);
      for (std::int64_t i = 0; i < 300; ++i) ASSERT_TRUE(std::isfinite(t.exp_avg(i))) << i;
    }
  });
}

}  // namespace
}  // namespace sluice::test
