// Against PyTorch and transformers: logits, every gradient, and the losses of 20 AdamW steps.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../model/model_runner.h"
#include "io/weights/safetensors.h"
#include "sluice/adamw.h"
#include "src/train/states/hugging_face.h"

namespace sluice {
namespace {

using test::ModelRunner;

constexpr BatchShape shape{2, 48};

template <class T>
std::vector<T> read_all(const SafeTensors& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return {};
  std::vector<T> data(entry->numel);
  EXPECT_EQ(entry->bytes, data.size() * sizeof(T)) << name;
  const Status status = file.read(*entry, 0, std::as_writable_bytes(std::span(data)));
  EXPECT_TRUE(status.ok());
  return data;
}

/// Norm of the difference over the norm of what is expected.
double relative_error(std::span<const float> got, std::span<const float> expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::string(SLUICE_FIXTURES) + "/golden/" + GetParam();
    auto config = load_config(folder_);
    ASSERT_TRUE(config.ok()) << config.error().message;
    config_ = *config;
    auto golden = SafeTensors::open(folder_ + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    golden_ = std::move(golden).value();
    std::ifstream(folder_ + "/golden.json") >> curves_;
  }

  std::vector<std::vector<float>> initial_values(const ModelSpec& spec) {
    std::vector<std::vector<float>> values;
    const auto weights = HuggingFaceWeights::open(folder_, spec);
    EXPECT_TRUE(weights.ok()) << (weights.ok() ? "" : weights.error().message);
    if (!weights.ok()) return values;
    const auto stream = WeightStream::open(*weights, {spec, ShardMap(spec, 1), {0, 1}, std::uint64_t{1} << 20});
    EXPECT_TRUE(stream.ok());
    for (std::size_t u = 0; u < spec.units.size(); ++u) {
      const auto unit = (*stream)->next();
      EXPECT_TRUE(unit.ok()) << (unit.ok() ? "" : unit.error().message);
      const std::span<const float> content = unit->as_f32().first(spec.units[u].numel);
      values.emplace_back(content.begin(), content.end());
    }
    return values;
  }

  std::vector<double> train(Dtype dtype, bool clip);

  std::string folder_;
  ModelConfig config_;
  SafeTensors golden_;
  nlohmann::json curves_;
};

TEST_P(Golden, logits_loss_and_gradients) {
  ModelRunner run(config_, shape, Dtype::f32);
  const auto values = initial_values(run.spec);
  for (std::size_t u = 0; u < values.size(); ++u) run.set_parameters(u, values[u]);
  const auto tokens = read_all<std::int32_t>(golden_, "sample");
  run.forward(tokens.data());
  EXPECT_LT(relative_error(run.logits(), read_all<float>(golden_, "logits")), 1e-5);
  const double count = static_cast<double>(shape.tokens());
  const double loss = run.backward(tokens.data(), 1 / count) / count;
  EXPECT_NEAR(loss, curves_["loss"].get<double>(), 1e-5 * loss);
  EXPECT_DOUBLE_EQ(run.loss(tokens.data()) / count, loss);
  run.add_tied_gradient();
  std::size_t compared = 0;
  for (std::size_t u = 0; u < run.spec.units.size(); ++u)
    for (const TensorSpec& t : run.spec.units[u].tensors) {
      const std::span<const float> got(run.gradients[u].as<float>() + t.offset, t.numel);
      const auto stored = read_all<float>(golden_, "grad." + t.stored.name);
      ASSERT_LE(t.stored.first + t.numel, stored.size()) << t.name;
      EXPECT_LT(relative_error(got, std::span(stored).subspan(t.stored.first, t.numel)), 1e-5) << t.name;
      compared += t.stored.first == 0;
    }
  EXPECT_EQ(compared + 3, golden_.entries().size()) << "sample, tokens and logits are the others";
}

/// Losses of 20 steps with weight decay 0.1 on matrices, betas 0.9 and 0.95, learning rate 1e-3.
std::vector<double> Golden::train(Dtype dtype, bool clip) {
  ModelRunner run(config_, shape, dtype);
  auto master = initial_values(run.spec);
  std::vector<std::vector<float>> m, v;
  for (const auto& values : master) m.emplace_back(values.size()), v.emplace_back(values.size());
  const auto tokens = read_all<std::int32_t>(golden_, "tokens");
  const double count = static_cast<double>(shape.tokens());
  std::vector<double> losses;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    for (std::size_t u = 0; u < master.size(); ++u) run.set_parameters(u, master[u]);
    const std::int32_t* batch =
        tokens.data() + (step - 1) * static_cast<std::uint64_t>(shape.batch * (shape.sequence + 1));
    run.forward(batch);
    losses.push_back(run.backward(batch, 1 / count) / count);
    run.add_tied_gradient();
    double norm_sq = 0;
    for (std::size_t u = 0; u < master.size(); ++u)
      add_squared_norm(run.gradients[u].as<float>(), static_cast<std::int64_t>(master[u].size()), &norm_sq);
    AdamwStep adamw{step, 1e-3f, 0.9f, 0.95f, 1e-8f, 0, 1};
    if (clip) adamw.gradient_scale = static_cast<float>(std::min(1.0, 1 / (std::sqrt(norm_sq) + 1e-6)));
    for (std::size_t u = 0; u < master.size(); ++u)
      for (const TensorSpec& t : run.spec.units[u].tensors) {
        adamw.weight_decay = t.decay ? 0.1f : 0;
        const auto report =
            adamw_f32(adamw, master[u].data() + t.offset, m[u].data() + t.offset, v[u].data() + t.offset,
                      run.gradients[u].as<float>() + t.offset, static_cast<std::int64_t>(t.numel));
        EXPECT_EQ(report.diverged, 0u);
      }
  }
  return losses;
}

TEST_P(Golden, twenty_steps_fp32) {
  for (const bool clip : {true, false}) {
    const auto losses = train(Dtype::f32, clip);
    const auto expected = curves_[clip ? "losses_clip" : "losses_free"].get<std::vector<double>>();
    ASSERT_EQ(losses.size(), expected.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << "step " << i + 1 << (clip ? " clipped" : "");
  }
}

TEST_P(Golden, twenty_steps_bf16) {
  const auto losses = train(Dtype::bf16, true);
  const auto exact = curves_["losses_clip"].get<std::vector<double>>();
  const auto torch = curves_["losses_bf16_clip"].get<std::vector<double>>();
  const double drop = exact.front() - exact.back();
  ASSERT_GT(drop, 0.5);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], exact[i], 0.05 * drop) << "step " << i + 1;
    EXPECT_NEAR(losses[i], torch[i], 0.05 * drop) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         testing::Values("llama_gqa", "llama_tied", "llama3_rope", "mistral_window", "qwen2", "qwen3",
                                         "gpt2", "phi3"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace sluice
