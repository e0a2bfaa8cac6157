// The fp32 path against the formulas in double, step by step over many steps of adversarial gradients.
#include "adamw_support.h"
#include "tests/exhaustive.h"

namespace sluice::test {
namespace {

/// Gradients of one element by its kind: what sums and averages are bad at.
float adversarial(std::int64_t i, std::uint64_t step) {
  const auto random = static_cast<float>(philox_normal(5, static_cast<std::uint64_t>(i), step));
  const float sign = step % 2 == 0 ? 1.0f : -1.0f;
  switch (i % 10) {
    case 0: return 0.0f;
    case 1: return sign * 0x1p-149f;                             // the least denormal
    case 2: return random * 0x1p-130f;                           // denormal
    case 3: return sign * 1e18f;                                 // its square is near the largest number
    case 4: return sign;                                         // averages cancel
    case 5: return step % 100 == 0 ? random * 1e6f : 1e-6f;      // rare and huge
    case 6: return step == 1 ? 1e4f : 0.0f;                      // once
    case 7: return random * 1e-20f;                              // its square is denormal
    case 8: return 1 + 0x1p-23f * static_cast<float>(step % 7);  // differences of last bits
    default: return random;
  }
}

float ulp(double x) {
  const float a = std::abs(static_cast<float>(x));
  return std::nextafter(a, std::numeric_limits<float>::infinity()) - a;
}

/// |got - want| is at most two units in the last place of the largest addend.
void expect_close(double want, float got, double largest, const char* what, std::int64_t i, std::uint64_t step) {
  ASSERT_LE(std::abs(want - got), 2.0 * ulp(std::max(largest, std::abs(want))))
      << what << " of element " << i << " in step " << step << ": " << want << " " << got;
}

/// One step from the same state, with the constants of the contract: in double, and every sum's largest addend.
void check_step(const Tensor& before, const Tensor& after, const AdamwStep& s, std::uint64_t step) {
  const double b1 = s.beta1, b2 = s.beta2, lr = s.lr, t = static_cast<double>(step);
  const double rate = lr / (1 - std::pow(b1, t)), root_correction = 1 / std::sqrt(1 - std::pow(b2, t));
  for (std::int64_t i = 0; i < before.numel(); ++i) {
    const double g = static_cast<double>(before.gradient(i)) * s.gradient_scale;
    const double m_old = before.exp_avg(i), v_old = before.exp_avg_sq(i), w_old = before.master(i);
    const double m = m_old + (1 - b1) * (g - m_old), v = b2 * v_old + (1 - b2) * g * g;
    ASSERT_NO_FATAL_FAILURE(
        expect_close(m, after.exp_avg(i), std::max(std::abs(m_old), std::abs(g)), "exp_avg", i, step));
    ASSERT_NO_FATAL_FAILURE(expect_close(v, after.exp_avg_sq(i), v, "exp_avg_sq", i, step));
    // the parameter from the moments as they were rounded: each sum is judged by itself
    const double direction =
        after.exp_avg(i) / (std::sqrt(static_cast<double>(after.exp_avg_sq(i))) * root_correction + s.eps);
    const double keep = 1 - lr * s.weight_decay, w = w_old * keep - rate * direction;
    const double largest = std::max(std::abs(w_old * keep), std::abs(rate * direction));
    ASSERT_NO_FATAL_FAILURE(expect_close(w, after.master(i), largest, "parameter", i, step));
  }
}

TEST(AdamwOracle, AThousandStepsStayWithinTwoUlpsOfEachSum) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Tensor t({dtype, Dtype::f32, MomentFormat::f32}, 130);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.set_master(i, i % 13 == 0 ? 0.0f : static_cast<float>(philox_normal(1, static_cast<std::uint64_t>(i), 0)));
    for (std::uint64_t step = 1; step <= 1000; ++step) {
      for (std::int64_t i = 0; i < t.numel(); ++i) t.set_gradient(i, adversarial(i, step));
      const Tensor before = t;
      const AdamwStep s = some_step(step, step % 3 == 0 ? 1.0f : 0.37f);
      ASSERT_EQ(t.update(s).diverged, 0u) << step;
      ASSERT_NO_FATAL_FAILURE(check_step(before, t, s, step)) << dtype_name(dtype);
    }
  }
}

/// Of all 2^32 patterns of a master every 251st, or each with SLUICE_EXHAUSTIVE=1 (6 s).
TEST(Master, EveryPatternSplitsIntoTheNearestParameterAndComesBack) {
  const bool all = test::is_exhaustive();
  const std::uint64_t stride = all ? 1 : 251;
  constexpr std::size_t n = 1 << 16;
  std::vector<float> w(n), back(n);
  std::vector<bf16> p(n);
  std::vector<std::int16_t> r(n);
  for (std::uint64_t first = 0; first < (std::uint64_t{1} << 32); first += n * stride) {
    for (std::size_t i = 0; i < n; ++i) w[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first + i * stride));
    split_master(w.data(), p.data(), r.data(), n);
    join_master(p.data(), r.data(), back.data(), n);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t bits = bits_of(w[i]), whole = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
      const bool up = (whole & 0xffffu) >= 0x8000u;
      const auto nearest = static_cast<std::uint16_t>((whole >> 16) + (up ? 1 : 0));
      wrong += p[i].bits != nearest || bits_of(back[i]) != whole;
    }
    ASSERT_EQ(wrong, 0u) << "from pattern " << first;
  }
}

}  // namespace
}  // namespace sluice::test
