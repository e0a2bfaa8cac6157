#include "kernels/cpu/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "tests/kernels_gemm/tensors.h"
#include "tests/kernels_vec/oracles.h"
#include "tests/kernels_vec/vocabulary_split.h"

namespace sluice::kernels {
namespace {

struct Result {
  std::vector<float> logits, loss;
  bool operator==(const Result&) const = default;
};

constexpr std::int64_t tokens = 11;
constexpr float grad_scale = 0.125f;

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

Result run(std::int64_t vocabulary, std::int64_t ld, float spread, float scale, int threads) {
  Result r{logits_of(vocabulary, ld, spread), std::vector<float>(tokens)};
  set_compute_threads(threads);
  cross_entropy_forward_backward(r.logits.data(), ld, targets_of(vocabulary).data(), tokens, vocabulary, scale,
                                 r.loss.data());
  return r;
}

void expect_oracles(const std::vector<float>& logits, const std::vector<std::int32_t>& targets, std::int64_t vocabulary,
                    std::int64_t ld, const Result& got, const std::vector<float>& loss_only) {
  for (std::int64_t t = 0; t < static_cast<std::int64_t>(targets.size()); ++t) {
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

std::vector<float> loss_alone(const std::vector<float>& logits, std::int64_t vocabulary, std::int64_t ld) {
  std::vector<float> loss(tokens);
  cross_entropy_forward(logits.data(), ld, targets_of(vocabulary).data(), tokens, vocabulary, loss.data());
  return loss;
}

void expect_agreement(std::int64_t vocabulary, std::int64_t ld, float spread) {
  const auto logits = logits_of(vocabulary, ld, spread);
  expect_oracles(logits, targets_of(vocabulary), vocabulary, ld, run(vocabulary, ld, spread, grad_scale, 2),
                 loss_alone(logits, vocabulary, ld));
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

// ---- columns split over members

/// Gradients of all members in rows of the whole vocabulary, the loss that all of them have, and the loss alone.
struct SplitResult {
  Result whole;
  std::vector<float> loss_only;
  bool operator==(const SplitResult&) const = default;
};

void expect_part(const test::MemberLogits& member, const VocabularyPart* parts) {
  for (std::size_t t = 0; t < member.targets.size(); ++t) {
    if (is_ignored(member.targets[t])) {
      EXPECT_TRUE(parts[t].sum == 0 && parts[t].largest == 0 && parts[t].target == 0);
    } else if (member.targets[t] == target_elsewhere) {
      EXPECT_EQ(parts[t].target, 0);
      if (member.columns > 0) continue;
      EXPECT_EQ(parts[t].sum, 0);
      EXPECT_EQ(parts[t].largest, -std::numeric_limits<float>::max());
    }
  }
}

SplitResult run_split(const std::vector<float>& logits, std::int64_t ld, const std::vector<std::int32_t>& targets,
                      const std::vector<std::int64_t>& split, std::int64_t gap, float scale = grad_scale) {
  const auto rows = static_cast<std::int64_t>(targets.size());
  const std::int64_t stride = rows + 3;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  auto members = test::split_logits(logits, ld, targets, split, gap);
  const auto count = static_cast<std::int64_t>(members.size());
  std::vector<VocabularyPart> parts(static_cast<std::size_t>(count * stride), {nan, nan, nan});
  SplitResult r{{logits, std::vector<float>(targets.size(), nan)}, std::vector<float>(targets.size(), nan)};
  for (std::int64_t m = 0; m < count; ++m) {
    const auto& member = members[static_cast<std::size_t>(m)];
    const float* x = member.columns > 0 ? member.logits.data() : nullptr;
    cross_entropy_part(x, member.ld, member.targets.data(), rows, member.columns, parts.data() + m * stride);
    expect_part(member, parts.data() + m * stride);
    member.put_back(r.whole.logits, ld);
  }
  EXPECT_EQ(std::memcmp(r.whole.logits.data(), logits.data(), logits.size() * sizeof(float)), 0)
      << "a part changed the logits";
  for (auto& member : members) {
    std::vector<float> loss(targets.size(), nan), loss_only(targets.size(), nan);
    cross_entropy_of_parts_forward(member.targets.data(), rows, parts.data(), count, stride, loss_only.data());
    float* x = member.columns > 0 ? member.logits.data() : nullptr;
    cross_entropy_of_parts_forward_backward(x, member.ld, member.targets.data(), rows, member.columns, parts.data(),
                                            count, stride, scale, loss.data());
    member.put_back(r.whole.logits, ld);
    if (&member == &members.front()) r.whole.loss = loss, r.loss_only = loss_only;
    EXPECT_EQ(std::memcmp(loss.data(), r.whole.loss.data(), loss.size() * sizeof(float)), 0) << "members differ";
    EXPECT_EQ(std::memcmp(loss.data(), loss_only.data(), loss.size() * sizeof(float)), 0) << "the loss alone differs";
  }
  return r;
}

TEST(cross_entropy_of_parts, one_member_has_the_bits_of_no_members) {
  for (const std::int64_t vocabulary : {1, 2, 7, 8, 31, 256, 257, 5000, 50257})
    for (const float spread : {0.5f, 30.0f}) {
      const auto logits = logits_of(vocabulary, vocabulary, spread);
      const SplitResult got = run_split(logits, vocabulary, targets_of(vocabulary), {vocabulary}, 5);
      EXPECT_EQ(got.whole, run(vocabulary, vocabulary, spread, grad_scale, 2));
      EXPECT_EQ(got.loss_only, loss_alone(logits, vocabulary, vocabulary));
    }
}

TEST(cross_entropy_of_parts, agrees_with_a_double_precision_loop) {
  set_compute_threads(2);
  for (const std::int64_t vocabulary : {1, 2, 7, 31, 257, 5000, 50257})
    for (const auto& split : test::splits_of(vocabulary))
      for (const float spread : {0.5f, 30.0f}) {
        const std::int64_t ld = vocabulary + 2;
        SCOPED_TRACE(testing::Message() << testing::PrintToString(split) << ", spread " << spread);
        const auto logits = logits_of(vocabulary, ld, spread);
        auto targets = targets_of(vocabulary);
        targets[7] = -7;  // ignored, as -1 is
        const SplitResult got = run_split(logits, ld, targets, split, 5);
        expect_oracles(logits, targets, vocabulary, ld, got.whole, got.loss_only);
      }
}

TEST(cross_entropy_of_parts, bits_do_not_depend_on_threads) {
  const auto logits = logits_of(1003, 1003, 4);
  const auto run_with = [&](int threads) {
    set_compute_threads(threads);
    return run_split(logits, 1003, targets_of(1003), {300, 0, 703}, 1);
  };
  const SplitResult expected = run_with(1);
  for (const int threads : {2, 3}) EXPECT_EQ(run_with(threads), expected);
}

TEST(cross_entropy_of_parts, a_non_finite_logit_makes_all_members_results_non_finite) {
  const std::vector<float> logits(100, 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {0u, 3u, 50u, 99u})
      for (const auto& split : test::splits_of(100)) {
        SCOPED_TRACE(testing::Message() << bad << " at " << at << " of " << testing::PrintToString(split));
        auto x = logits;
        x[at] = bad;
        const SplitResult got = run_split(x, 100, {3}, split, 0);
        EXPECT_FALSE(std::isfinite(got.whole.loss[0]));
        for (const float d : got.whole.logits) EXPECT_FALSE(std::isfinite(d));
      }
}

TEST(cross_entropy_of_parts, words_that_are_impossible_take_no_part) {
  std::vector<float> logits(300, -std::numeric_limits<float>::infinity());
  logits[17] = 2;
  logits[250] = 2;
  const SplitResult got = run_split(logits, 300, {250}, {100, 100, 100}, 0, 1);
  EXPECT_NEAR(got.whole.loss[0], std::log(2.0), 1e-6);
  for (std::size_t i = 0; i < logits.size(); ++i)
    ASSERT_EQ(got.whole.logits[i], i == 17 ? 0.5f : i == 250 ? -0.5f : 0.0f) << i;
}

}  // namespace
}  // namespace sluice::kernels
