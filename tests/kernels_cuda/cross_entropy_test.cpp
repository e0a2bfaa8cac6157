#include "kernels/cuda/cross_entropy.h"

#include <limits>

#include "device.h"
#include "tests/kernels_vec/oracles.h"

namespace sluice::test {
namespace {

constexpr std::int64_t tokens = 11;

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
  Output run(const std::vector<float>& host, std::int64_t ld, std::int64_t vocabulary, float grad_scale,
             std::int64_t shift) {
    DeviceArray<float> logits(host, shift), loss(tokens), loss_only(tokens);
    DeviceArray<std::int32_t> targets(targets_of(vocabulary));
    cuda::cross_entropy_forward(logits.data(), ld, targets.data(), tokens, vocabulary, loss_only.data(), *stream);
    EXPECT_TRUE(same_bytes(host, logits.read())) << "the loss alone changed the logits";
    cuda::cross_entropy_forward_backward(logits.data(), ld, targets.data(), tokens, vocabulary, grad_scale, loss.data(),
                                         *stream);
    return {logits.read(), loss.read(), loss_only.read()};
  }

  void check(std::int64_t vocabulary, std::int64_t ld, double spread) {
    constexpr float grad_scale = 0.125f;
    SCOPED_TRACE(testing::Message() << vocabulary << " words, rows of " << ld << ", spread " << spread);
    const auto logits = normal<float>(tokens * ld, 5, spread);
    const auto targets = targets_of(vocabulary);
    const Output got = run(logits, ld, vocabulary, grad_scale, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
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
    EXPECT_TRUE(got == run(logits, ld, vocabulary, grad_scale, 0)) << "a second time";
    EXPECT_TRUE(got == run(logits, ld, vocabulary, grad_scale, 1)) << "from another address";
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

}  // namespace
}  // namespace sluice::test
