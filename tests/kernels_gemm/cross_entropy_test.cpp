#include "kernels/cpu/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "tests/kernels_gemm/tensors.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::kernels {
namespace {

struct Result {
  std::vector<float> logits, loss;
  bool operator==(const Result&) const = default;
};

constexpr std::int64_t tokens = 11;

std::vector<std::int32_t> targets_of(std::int64_t vocabulary) {
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < tokens; ++t)
    targets.push_back(t % 4 == 3 ? -1 : static_cast<std::int32_t>(t * 7919 % vocabulary));
  return targets;
}

std::vector<float> logits_of(std::int64_t vocabulary, std::int64_t ld, float spread) {
  Tensor x(Dtype::f32, tokens * ld, 0);
  x.fill(768);
  x.fill_random_rows(5, tokens, vocabulary, ld, spread);
  return x.floats();
}

Result run(std::int64_t vocabulary, std::int64_t ld, float spread, float grad_scale, int threads) {
  Result r{logits_of(vocabulary, ld, spread), std::vector<float>(tokens)};
  set_compute_threads(threads);
  cross_entropy_forward_backward(r.logits.data(), ld, targets_of(vocabulary).data(), tokens, vocabulary, grad_scale,
                                 r.loss.data());
  return r;
}

void expect_agreement(std::int64_t vocabulary, std::int64_t ld, float spread) {
  constexpr float grad_scale = 0.125f;
  const auto logits = logits_of(vocabulary, ld, spread);
  const auto targets = targets_of(vocabulary);
  const Result got = run(vocabulary, ld, spread, grad_scale, 2);
  std::vector<float> loss_only(tokens);
  cross_entropy_forward(logits.data(), ld, targets.data(), tokens, vocabulary, loss_only.data());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* x = logits.data() + t * ld;
    const float* gradient = got.logits.data() + t * ld;
    const std::int32_t target = targets[static_cast<std::size_t>(t)];
    const test::CrossEntropy want(x, vocabulary, target, grad_scale);
    const double expected = want.loss;
    EXPECT_NEAR(got.loss[static_cast<std::size_t>(t)], expected, 2e-6 * (1 + std::fabs(expected)));
    EXPECT_NEAR(loss_only[static_cast<std::size_t>(t)], expected, 2e-6 * (1 + std::fabs(expected)));
    for (std::int64_t i = 0; i < ld; ++i) {
      if (i >= vocabulary) {
        ASSERT_EQ(gradient[i], 768);
        continue;
      }
      const double d = want.gradient[static_cast<std::size_t>(i)];
      // x - largest is rounded in fp32, so the error grows with it
      ASSERT_NEAR(gradient[i], d, (1e-6 + 2e-7 * (want.largest - x[i])) * std::fabs(d) + 1e-30)
          << "token " << t << " word " << i;
    }
  }
}

TEST(cross_entropy, agrees_with_a_double_precision_loop) {
  for (const std::int64_t vocabulary : {1, 2, 7, 8, 31, 256, 257, 5000, 50257})
    for (const std::int64_t padding : {0, 5})
      for (const float spread : {0.5f, 30.0f}) expect_agreement(vocabulary, vocabulary + padding, spread);
}

TEST(cross_entropy, bits_do_not_depend_on_threads) {
  const Result expected = run(1003, 1003, 4, 1, 1);
  for (const int threads : {2, 3}) EXPECT_EQ(run(1003, 1003, 4, 1, threads), expected);
}

TEST(cross_entropy, a_non_finite_logit_makes_a_non_finite_loss) {
  std::vector<float> logits(100, 1.0f);
  const std::int32_t target = 3;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {0u, 3u, 50u, 99u}) {
      auto x = logits;
      x[at] = bad;
      float loss = 0;
      cross_entropy_forward(x.data(), 100, &target, 1, 100, &loss);
      EXPECT_FALSE(std::isfinite(loss)) << bad << " at " << at;
    }
}

}  // namespace
}  // namespace sluice::kernels
