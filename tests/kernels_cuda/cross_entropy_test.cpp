#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "device.h"
#include "tests/kernels_vec/oracles.h"
#include "tests/kernels_vec/vocabulary_split.h"

namespace sluice::test {
namespace {

constexpr std::int64_t tokens = 11;
constexpr float grad_scale = 0.125f;

class CrossEntropyTest : public DeviceTest {
 protected:
  static std::vector<std::int32_t> targets_of(std::int64_t vocabulary) {
    std::vector<std::int32_t> targets;
    for (std::int64_t t = 0; t < tokens; ++t)
      targets.push_back(t % 4 == 3 ? -1 : static_cast<std::int32_t>(t * 7919 % vocabulary));
    return targets;
  }

  struct Output {
    std::vector<float> logits, loss, loss_only;
    bool operator==(const Output& o) const {
      return same_bytes(logits, o.logits) && same_bytes(loss, o.loss) && same_bytes(loss_only, o.loss_only);
    }
  };
  Output run(const std::vector<float>& host, std::int64_t ld, std::int64_t vocabulary, std::int64_t shift) {
    DeviceArray<float> logits(host, shift), loss(tokens), loss_only(tokens);
    DeviceArray<std::int32_t> targets(targets_of(vocabulary));
    cuda::cross_entropy_forward(logits.data(), ld, targets.data(), tokens, vocabulary, loss_only.data(), *stream);
    EXPECT_TRUE(same_bytes(host, logits.read())) << "the loss alone changed the logits";
    cuda::cross_entropy_forward_backward(logits.data(), ld, targets.data(), tokens, vocabulary, grad_scale, loss.data(),
                                         *stream);
    return {logits.read(), loss.read(), loss_only.read()};
  }

  static void expect_oracles(const std::vector<float>& logits, const std::vector<std::int32_t>& targets,
                             std::int64_t vocabulary, std::int64_t ld, const Output& got) {
    for (std::int64_t t = 0; t < static_cast<std::int64_t>(targets.size()); ++t) {
      const float* x = logits.data() + t * ld;
      const float* gradient = got.logits.data() + t * ld;
      const auto at = static_cast<std::size_t>(t);
      const CrossEntropy want(x, vocabulary, targets[at], grad_scale);
      ASSERT_NEAR(got.loss[at], want.loss, 2e-6 * (1 + std::abs(want.loss)));
      ASSERT_NEAR(got.loss_only[at], want.loss, 2e-6 * (1 + std::abs(want.loss)));
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        const double d = want.gradient[static_cast<std::size_t>(i)];
        // x - largest is rounded in fp32, so the error grows with it
        ASSERT_NEAR(gradient[i], d, (1e-6 + 2e-7 * (want.largest - x[i])) * std::abs(d) + 1e-30)
            << "token " << t << " word " << i;
      }
      for (std::int64_t i = vocabulary; i < ld; ++i) ASSERT_EQ(gradient[i], x[i]) << "touched the padding";
    }
  }

  void check(std::int64_t vocabulary, std::int64_t ld, double spread) {
    SCOPED_TRACE(testing::Message() << vocabulary << " words, rows of " << ld << ", spread " << spread);
    const auto logits = normal<float>(tokens * ld, 5, spread);
    const Output got = run(logits, ld, vocabulary, 0);
    expect_oracles(logits, targets_of(vocabulary), vocabulary, ld, got);
    EXPECT_TRUE(got == run(logits, ld, vocabulary, 0)) << "a second time";
    EXPECT_TRUE(got == run(logits, ld, vocabulary, 1)) << "from another address";
  }

  /// Columns split over members: gradients of all in rows of the whole vocabulary, and the losses that all have.
  Output run_split(const std::vector<float>& logits, std::int64_t ld, const std::vector<std::int32_t>& targets,
                   const std::vector<std::int64_t>& split, std::int64_t gap, std::int64_t shift,
                   float scale = grad_scale) {
    const auto rows = static_cast<std::int64_t>(targets.size());
    const std::int64_t stride = rows + 3;
    auto members = split_logits(logits, ld, targets, split, gap);
    const auto count = static_cast<std::int64_t>(members.size());
    DeviceArray<kernels::VocabularyPart> parts(count * stride);
    Output r;
    r.logits = logits;
    for (std::int64_t m = 0; m < count; ++m) {
      const auto& member = members[static_cast<std::size_t>(m)];
      DeviceArray<float> x(member.logits, shift);
      DeviceArray<std::int32_t> own(member.targets);
      cuda::cross_entropy_part(member.columns > 0 ? x.data() : nullptr, member.ld, own.data(), rows, member.columns,
                               parts.data() + m * stride, *stream);
      EXPECT_TRUE(same_bytes(member.logits, x.read())) << "a part changed the logits";
    }
    expect_parts(parts.read(), stride, members);
    for (auto& member : members) {
      DeviceArray<float> x(member.logits, shift), loss(rows), loss_only(rows);
      DeviceArray<std::int32_t> own(member.targets);
      cuda::cross_entropy_of_parts_forward(own.data(), rows, parts.data(), count, stride, loss_only.data(), *stream);
      cuda::cross_entropy_of_parts_forward_backward(member.columns > 0 ? x.data() : nullptr, member.ld, own.data(),
                                                    rows, member.columns, parts.data(), count, stride, scale,
                                                    loss.data(), *stream);
      member.logits = x.read();
      member.put_back(r.logits, ld);
      if (&member == &members.front()) r.loss = loss.read(), r.loss_only = loss_only.read();
      EXPECT_TRUE(same_bytes(loss.read(), r.loss)) << "members differ";
      EXPECT_TRUE(same_bytes(loss.read(), loss_only.read())) << "the loss alone differs";
    }
    return r;
  }

  static void expect_parts(const std::vector<kernels::VocabularyPart>& parts, std::int64_t stride,
                           const std::vector<MemberLogits>& members) {
    for (std::size_t m = 0; m < members.size(); ++m)
      for (std::size_t t = 0; t < members[m].targets.size(); ++t) {
        const kernels::VocabularyPart& part = parts[m * static_cast<std::size_t>(stride) + t];
        const std::int32_t target = members[m].targets[t];
        if (kernels::is_ignored(target)) {
          EXPECT_TRUE(part.sum == 0 && part.largest == 0 && part.target == 0);
        } else if (target == kernels::target_elsewhere) {
          EXPECT_EQ(part.target, 0);
          if (members[m].columns > 0) continue;
          EXPECT_EQ(part.sum, 0);
          EXPECT_EQ(part.largest, -std::numeric_limits<float>::max());
        }
      }
  }
};

TEST_F(CrossEntropyTest, AgreesWithADoublePrecisionLoop) {
  for (const std::int64_t vocabulary : {1, 2, 7, 8, 31, 256, 257, 5000, 50257})
    for (const std::int64_t padding : {0, 5})
      for (const double spread : {0.3, 10.0}) check(vocabulary, vocabulary + padding, spread);
}

TEST_F(CrossEntropyTest, NonFiniteLogitsMakeANonFiniteLoss) {
  const std::vector<float> logits(100, 1.0f);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {0u, 3u, 50u, 99u}) {
      auto host = logits;
      host[at] = bad;
      DeviceArray<float> x(host), loss(1);
      DeviceArray<std::int32_t> target(std::vector<std::int32_t>{3});
      cuda::cross_entropy_forward(x.data(), 100, target.data(), 1, 100, loss.data(), *stream);
      EXPECT_FALSE(std::isfinite(loss.read()[0])) << bad << " at " << at;
    }
}

TEST_F(CrossEntropyTest, WordsThatAreImpossibleTakeNoPart) {
  std::vector<float> logits(300, -std::numeric_limits<float>::infinity());
  logits[17] = 2;
  logits[250] = 2;
  DeviceArray<float> x(logits), loss(1);
  DeviceArray<std::int32_t> target(std::vector<std::int32_t>{250});
  cuda::cross_entropy_forward_backward(x.data(), 300, target.data(), 1, 300, 1.0f, loss.data(), *stream);
  EXPECT_NEAR(loss.read()[0], std::log(2.0), 1e-6);
  const auto gradient = x.read();
  for (std::size_t i = 0; i < gradient.size(); ++i)
    ASSERT_EQ(gradient[i], i == 17 ? 0.5f : i == 250 ? -0.5f : 0.0f) << i;
}

TEST_F(CrossEntropyTest, OneMemberOfAVocabularyHasTheBitsOfNoMembers) {
  for (const std::int64_t vocabulary : {1, 2, 7, 8, 31, 256, 257, 5000, 50257})
    for (const double spread : {0.3, 10.0}) {
      SCOPED_TRACE(testing::Message() << vocabulary << " words, spread " << spread);
      const auto logits = normal<float>(tokens * vocabulary, 5, spread);
      EXPECT_TRUE(run_split(logits, vocabulary, targets_of(vocabulary), {vocabulary}, 5, 0) ==
                  run(logits, vocabulary, vocabulary, 0));
    }
}

TEST_F(CrossEntropyTest, MembersOfAVocabularyAgreeWithADoublePrecisionLoop) {
  for (const std::int64_t vocabulary : {1, 2, 7, 31, 257, 5000, 50257})
    for (const auto& split : splits_of(vocabulary))
      for (const double spread : {0.3, 10.0}) {
        const std::int64_t ld = vocabulary + 2;
        SCOPED_TRACE(testing::Message() << testing::PrintToString(split) << ", spread " << spread);
        const auto logits = normal<float>(tokens * ld, 5, spread);
        auto targets = targets_of(vocabulary);
        targets[7] = -7;  // ignored, as -1 is
        const Output got = run_split(logits, ld, targets, split, 3, 0);
        expect_oracles(logits, targets, vocabulary, ld, got);
        if (vocabulary > 5000) continue;
        EXPECT_TRUE(got == run_split(logits, ld, targets, split, 3, 1)) << "from another address";
      }
}

TEST_F(CrossEntropyTest, NonFiniteLogitsOfAMemberMakeAllMembersResultsNonFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const std::size_t at : {0u, 3u, 50u, 99u})
      for (const auto& split : splits_of(100)) {
        SCOPED_TRACE(testing::Message() << bad << " at " << at << " of " << testing::PrintToString(split));
        std::vector<float> logits(100, 1.0f);
        logits[at] = bad;
        const Output got = run_split(logits, 100, {3}, split, 0, 0);
        EXPECT_FALSE(std::isfinite(got.loss[0]));
        for (const float d : got.logits) EXPECT_FALSE(std::isfinite(d));
      }
}

TEST_F(CrossEntropyTest, AMemberWhoseWordsAreImpossibleTakesNoPart) {
  std::vector<float> logits(300, -std::numeric_limits<float>::infinity());
  logits[17] = 2;
  logits[250] = 2;
  const Output got = run_split(logits, 300, {250}, {100, 100, 100}, 0, 0, 1.0f);
  EXPECT_NEAR(got.loss[0], std::log(2.0), 1e-6);
  for (std::size_t i = 0; i < logits.size(); ++i)
    ASSERT_EQ(got.logits[i], i == 17 ? 0.5f : i == 250 ? -0.5f : 0.0f) << i;
}

/// More tokens than the largest grid has blocks: blocks and threads go on to further ones.
TEST_F(CrossEntropyTest, MembersOfAVocabularyTakeManyTokens) {
  constexpr std::int64_t many = 40'000, vocabulary = 5;
  const auto logits = normal<float>(many * vocabulary, 5, 3);
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < many; ++t)
    targets.push_back(t % 7 == 3 ? -1 : static_cast<std::int32_t>(t * 7919 % vocabulary));
  expect_oracles(logits, targets, vocabulary, vocabulary, run_split(logits, vocabulary, targets, {2, 3}, 0, 0));
}

}  // namespace
}  // namespace sluice::test
