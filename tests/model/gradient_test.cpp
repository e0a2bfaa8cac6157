// Every sublayer's backward against differences of its forward, in fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "model_runner.h"
#include "models.h"

namespace sluice {
namespace {

using test::ModelRunner;

class Gradient : public testing::TestWithParam<ModelConfig> {
 protected:
  static constexpr BatchShape shape{2, 9};

  Gradient() : run_(GetParam(), shape, Dtype::f32), tokens_(test::some_tokens(shape, GetParam().vocabulary, 3)) {
    run_.initialise(7);
    // Norm weights and biases away from one and zero.
    for (std::size_t u = 0; u < run_.spec.units.size(); ++u)
      for (const TensorSpec& t : run_.spec.units[u].tensors)
        if (t.shape.size() == 1)
          for (std::uint64_t i = 0; i < t.numel; ++i)
            parameter(u)[t.offset + i] += static_cast<float>(0.2 * philox_normal(11, i, t.index));
  }

  float* parameter(std::size_t u) { return run_.parameters[u].as<float>(); }

  double loss() {
    run_.forward(tokens_.data());
    return run_.loss(tokens_.data());
  }

  /// Directional derivative of the loss along `direction` from `at`, by central differences.
  double difference(float* at, const std::vector<double>& direction, double step) {
    const std::vector<float> before(at, at + direction.size());
    double side[2];
    for (const int s : {0, 1}) {
      for (std::size_t i = 0; i < direction.size(); ++i)
        at[i] = static_cast<float>(before[i] + (s == 0 ? -step : step) * direction[i]);
      side[s] = loss();
    }
    std::copy(before.begin(), before.end(), at);
    return (side[1] - side[0]) / (2 * step);
  }

  ModelRunner run_;
  std::vector<std::int32_t> tokens_;
};

/// Half along the gradient, where the signal is, half along a random direction, where a wrong component shows.
std::vector<double> direction_near(const float* gradient, std::size_t n, std::uint64_t seed) {
  std::vector<double> direction(n);
  double norm = 0, random_norm = 0;
  for (std::size_t i = 0; i < n; ++i) norm += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
  for (std::size_t i = 0; i < n; ++i) {
    direction[i] = philox_normal(seed, i, 0);
    random_norm += direction[i] * direction[i];
  }
  for (std::size_t i = 0; i < n; ++i)
    direction[i] =
        0.7 * direction[i] / std::sqrt(random_norm) + 0.7 * static_cast<double>(gradient[i]) / std::sqrt(norm);
  return direction;
}

TEST_P(Gradient, of_every_tensor_is_the_slope_of_the_loss) {
  loss();
  run_.backward(tokens_.data(), 1);
  run_.add_tied_gradient();
  for (std::size_t u = 0; u < run_.spec.units.size(); ++u)
    for (const TensorSpec& t : run_.spec.units[u].tensors) {
      const float* gradient = run_.gradients[u].as<float>() + t.offset;
      const std::vector<float> kept(gradient, gradient + t.numel);
      for (const std::uint64_t seed : {1, 2}) {
        const auto direction = direction_near(kept.data(), kept.size(), seed);
        double expected = 0, norm = 0;
        for (std::size_t i = 0; i < kept.size(); ++i) {
          expected += direction[i] * static_cast<double>(kept[i]);
          norm += static_cast<double>(kept[i]) * static_cast<double>(kept[i]);
        }
        const double got = difference(parameter(u) + t.offset, direction, 2e-2);
        EXPECT_NEAR(got, expected, 4e-3 * std::sqrt(norm) + 2e-3) << t.name;
      }
    }
}

/// d_in of each sublayer: the loss as a function of that sublayer's input alone.
TEST_P(Gradient, of_every_boundary_is_the_slope_of_the_loss) {
  loss();
  run_.backward(tokens_.data(), 1);
  const std::size_t n = static_cast<std::size_t>(shape.tokens() * GetParam().hidden), units = run_.spec.units.size();
  for (std::size_t u = 1; u < units; ++u) {
    const float* d = run_.d[u].as<float>();
    const auto direction = direction_near(d, n, u);
    double expected = 0, norm = 0, side[2];
    for (std::size_t i = 0; i < n; ++i) {
      expected += direction[i] * static_cast<double>(d[i]);
      norm += static_cast<double>(d[i]) * static_cast<double>(d[i]);
    }
    loss();
    const std::vector<float> x = test::load(Dtype::f32, run_.x[u].data(), n);
    for (const int s : {0, 1}) {
      for (std::size_t i = 0; i < n; ++i)
        run_.x[u].as<float>()[i] = static_cast<float>(x[i] + (s == 0 ? -2e-2 : 2e-2) * direction[i]);
      run_.forward_from(u);
      side[s] = run_.loss(tokens_.data());
    }
    EXPECT_NEAR((side[1] - side[0]) / 4e-2, expected, 4e-3 * std::sqrt(norm) + 2e-3) << run_.spec.units[u].name;
  }
}

TEST_P(Gradient, ignored_targets_carry_none) {
  for (std::int32_t& t : tokens_) t = std::max(t, 0);
  // Columns 1.. are targets as well as inputs: a row of one sequence whose last target alone is ignored.
  const auto last = static_cast<std::size_t>(shape.sequence);
  tokens_[last] = tokens_[2 * last + 1] = -1;
  const double without = loss();
  EXPECT_EQ(run_.backward(tokens_.data(), 1), without);
  const float* d = run_.d[run_.spec.units.size() - 1].as<float>();
  const std::size_t hidden = static_cast<std::size_t>(GetParam().hidden);
  for (std::size_t i = 0; i < hidden; ++i) EXPECT_EQ(d[(last - 1) * hidden + i], 0.0f);
  EXPECT_NE(d[0], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Models, Gradient, testing::ValuesIn(test::small_models()),
                         [](const auto& model) { return test::model_name(model); });

}  // namespace
}  // namespace sluice
