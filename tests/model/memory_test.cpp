// What the plan relies on: buffers of the promised size suffice and nothing around them changes; bits depend on values
// and shapes alone; recomputation is the forward pass again.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "model_runner.h"
#include "models.h"

namespace sluice {
namespace {

using test::Guarded;
using test::ModelRunner;

class Memory : public testing::TestWithParam<std::tuple<ModelConfig, Dtype, BatchShape>> {
 protected:
  ModelConfig config() const { return std::get<0>(GetParam()); }
  Dtype dtype() const { return std::get<1>(GetParam()); }
  BatchShape shape() const { return std::get<2>(GetParam()); }
  std::vector<std::int32_t> tokens(std::uint64_t seed) const {
    return test::some_tokens(shape(), config().vocabulary, seed);
  }
};

/// Guards around every buffer are looked at after each op by ModelRunner.
TEST_P(Memory, same_bits_wherever_buffers_lie_and_whatever_they_held) {
  ModelRunner a(config(), shape(), dtype(), 0), b(config(), shape(), dtype(), 13);
  const auto t = tokens(1);
  double loss[2];
  for (int i = 0; ModelRunner * run : {&a, &b}) {
    run->initialise(5);
    run->forward(t.data());
    loss[i++] = run->backward(t.data(), 0.01);
  }
  EXPECT_EQ(loss[0], loss[1]);
  EXPECT_TRUE(std::isfinite(loss[0]));
  EXPECT_TRUE(a.gradients == b.gradients);
  EXPECT_TRUE(a.d.back() == b.d.back());
  EXPECT_TRUE(a.x.back() == b.x.back());
  if (config().tied) {
    EXPECT_TRUE(a.tied_gradient == b.tied_gradient);
  }
}

/// In halves, and with what the MLP has saved made again on the way.
TEST_P(Memory, other_ways_of_the_backward_pass_are_the_whole) {
  ModelRunner whole(config(), shape(), dtype(), 0), halves(config(), shape(), dtype(), 13),
      again(config(), shape(), dtype(), 29);
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < shape().tokens(); ++i)
    positions.push_back(static_cast<std::int32_t>(i % shape().sequence % 7));
  for (ModelRunner* run : {&whole, &halves, &again}) {
    if (shape().sequence > 8) run->set_positions(positions);
    run->initialise(5);
    const ModelRunner::Back back = run == &halves  ? ModelRunner::Back::halves
                                   : run == &again ? ModelRunner::Back::again
                                                   : ModelRunner::Back::whole;
    for (const bool accumulate : {false, true}) {
      const auto t = tokens(accumulate ? 2 : 1);
      run->forward(t.data());
      run->backward(t.data(), 0.01, accumulate, back);
    }
  }
  for (std::size_t u = 0; u < whole.spec.units.size(); ++u) {
    for (const ModelRunner* other : {&halves, &again}) {
      EXPECT_TRUE(whole.gradients[u] == other->gradients[u]) << whole.spec.units[u].name;
      if (u > 0) {
        EXPECT_TRUE(whole.d[u] == other->d[u]) << whole.spec.units[u].name;
      }
    }
  }
}

TEST_P(Memory, unset_accumulate_sets_all_of_the_gradient) {
  ModelRunner run(config(), shape(), dtype());
  const auto t = tokens(1);
  run.initialise(5);
  run.forward(t.data());
  run.backward(t.data(), 0.01);
  for (std::size_t u = 0; u < run.spec.units.size(); ++u) {
    const UnitSpec& unit = run.spec.units[u];
    std::vector<bool> padding(unit.numel, true);
    for (const TensorSpec& s : unit.tensors) std::fill_n(padding.begin() + static_cast<long>(s.offset), s.numel, false);
    for (std::uint64_t i = 0; i < unit.numel; ++i) {
      const float g = run.gradients[u].as<float>()[i];
      ASSERT_TRUE(std::isfinite(g)) << unit.name << " " << i;
      if (padding[i]) {
        ASSERT_EQ(g, 0.0f) << unit.name << " " << i;
      }
    }
  }
}

TEST_P(Memory, accumulation_adds_micro_batches) {
  ModelRunner both(config(), shape(), dtype()), first(config(), shape(), dtype()), second(config(), shape(), dtype());
  for (ModelRunner* run : {&both, &first, &second}) run->initialise(5);
  const auto one = tokens(1), two = tokens(2);
  both.forward(one.data());
  both.backward(one.data(), 0.01);
  both.forward(two.data());
  both.backward(two.data(), 0.01, true);
  first.forward(one.data());
  first.backward(one.data(), 0.01);
  second.forward(two.data());
  second.backward(two.data(), 0.01);
  for (std::size_t u = 0; u < both.spec.units.size(); ++u) {
    double difference = 0, norm = 0;
    for (std::uint64_t i = 0; i < both.spec.units[u].numel; ++i) {
      const double sum = static_cast<double>(first.gradients[u].as<float>()[i]) +
                         static_cast<double>(second.gradients[u].as<float>()[i]);
      difference += std::pow(static_cast<double>(both.gradients[u].as<float>()[i]) - sum, 2);
      norm += sum * sum;
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << both.spec.units[u].name;
  }
}

TEST_P(Memory, recomputation_and_forward_without_keeping_give_the_same_bits) {
  ModelRunner kept(config(), shape(), dtype()), bare(config(), shape(), dtype());
  const auto t = tokens(3);
  for (ModelRunner* run : {&kept, &bare}) run->initialise(5);
  kept.forward(t.data());
  bare.forward(t.data(), false);
  EXPECT_TRUE(kept.x.back() == bare.x.back());
  for (const auto again : {ModelRunner::Again::whole, ModelRunner::Again::halves}) {
    bare.recompute(again);
    for (std::size_t u = 0; u < kept.spec.units.size(); ++u)
      EXPECT_EQ(std::memcmp(kept.saved[u].data(), bare.saved[u].data(), kept.saved[u].size()), 0)
          << kept.spec.units[u].name;
  }
}

std::string case_name(const auto& model) {
  const auto& [config, dtype, shape] = model.param;
  return config.name + "_" + dtype_name(dtype) + "_b" + std::to_string(shape.batch) + "_s" +
         std::to_string(shape.sequence);
}

// 3 x 300 tokens are several chunks for every sublayer: hidden 32 makes chunks of at most 512.
INSTANTIATE_TEST_SUITE_P(Models, Memory,
                         testing::Combine(testing::ValuesIn(test::small_models()),
                                          testing::Values(Dtype::f32, Dtype::bf16),
                                          testing::Values(BatchShape{1, 7}, BatchShape{3, 300})),
                         [](const auto& model) { return case_name(model); });

TEST(Chunks, of_one_large_micro_batch_sum_up_to_small_ones) {
  const BatchShape large{3, 400}, small{1, 400};
  for (const ModelConfig& config : test::small_models()) {
    ModelRunner a(config, large, Dtype::f32), b(config, small, Dtype::f32);
    const auto tokens = test::some_tokens(large, config.vocabulary, 1);
    a.initialise(5);
    b.initialise(5);
    a.forward(tokens.data());
    const double loss = a.backward(tokens.data(), 0.001);
    double sum = 0;
    for (int i = 0; i < 3; ++i) {
      b.forward(tokens.data() + 401 * i);
      sum += b.backward(tokens.data() + 401 * i, 0.001, i > 0);
    }
    EXPECT_NEAR(loss, sum, 1e-5 * loss) << config.name;
    for (std::size_t u = 0; u < a.spec.units.size(); ++u) {
      double difference = 0, norm = 0;
      for (std::uint64_t i = 0; i < a.spec.units[u].numel; ++i) {
        const double x = a.gradients[u].as<float>()[i], y = b.gradients[u].as<float>()[i];
        difference += (x - y) * (x - y);
        norm += x * x;
      }
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << config.name << " " << a.spec.units[u].name;
    }
  }
}

TEST(Cost, workspace_does_not_grow_with_the_micro_batch) {
  const ModelSpec model = build_model(preset_config("llama-1b").value());
  for (const UnitSpec& unit : model.units) {
    const SublayerCost one = sublayer_cost(model, unit, {1, 2048}, Dtype::bf16, cpu_kernel_sizes);
    const SublayerCost eight = sublayer_cost(model, unit, {8, 2048}, Dtype::bf16, cpu_kernel_sizes);
    EXPECT_EQ(one.forward_workspace_bytes, eight.forward_workspace_bytes) << unit.name;
    EXPECT_EQ(one.backward_workspace_bytes, eight.backward_workspace_bytes) << unit.name;
    EXPECT_EQ(8 * one.boundary_bytes, eight.boundary_bytes);
    EXPECT_DOUBLE_EQ(8 * one.backward_flop, eight.backward_flop);
  }
}

TEST(Cost, flop_of_a_step_is_six_per_parameter_and_token) {
  const ModelSpec model = build_model(preset_config("llama-1b").value());
  double flop = 0;
  for (const UnitSpec& unit : model.units) {
    const SublayerCost cost = sublayer_cost(model, unit, {1, 256}, Dtype::bf16, cpu_kernel_sizes);
    flop += cost.forward_flop + cost.backward_flop;
    EXPECT_LE(cost.recompute_flop, cost.forward_flop);
  }
  const double in_matmuls = static_cast<double>(model.parameters) - 32000.0 * 2048.0;
  EXPECT_NEAR(flop / (6 * in_matmuls * 256), 1, 0.03);
}

}  // namespace
}  // namespace sluice
