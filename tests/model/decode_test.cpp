// Decoding with a cache of keys and values gives the logits of the full forward pass.
#include <gtest/gtest.h>

#include <cmath>

#include "model_runner.h"
#include "models.h"

namespace sluice {
namespace {

using test::Guarded;
using test::ModelRunner;

class Decode : public testing::TestWithParam<ModelConfig> {};

/// Feeds `tokens` in pieces of the given lengths; logits after each piece.
std::vector<std::vector<float>> decode(const ModelConfig& config, const std::vector<std::int32_t>& tokens,
                                       const std::vector<std::int64_t>& pieces) {
  const std::int64_t capacity = 400;
  ModelRunner model(config, {1, capacity}, Dtype::f32);
  model.initialise(5);
  std::vector<Guarded> caches;
  for (const UnitSpec& unit : model.spec.units)
    caches.emplace_back(kv_cache_bytes(model.spec, unit, capacity, Dtype::f32));
  std::vector<std::vector<float>> logits;
  std::int64_t position = 0;
  for (const std::int64_t length : pieces) {
    const BatchShape shape{1, length};
    const std::vector<std::int32_t> piece(tokens.begin() + position, tokens.begin() + position + length);
    Guarded x[2] = {Guarded(static_cast<std::uint64_t>(4 * length * config.hidden)),
                    Guarded(static_cast<std::uint64_t>(4 * length * config.hidden))};
    for (std::size_t u = 0; u < model.spec.units.size(); ++u) {
      Guarded workspace(sublayer_cost(model.spec, model.spec.units[u], shape, Dtype::f32, cpu_kernel_sizes, capacity)
                            .forward_workspace_bytes);
      SublayerArgs a = model.args(u);
      a.shape = shape;
      a.position0 = position;
      a.tokens.inputs = piece.data();
      a.x_in = x[u % 2].data();
      a.x_out = x[(u + 1) % 2].data();
      a.workspace = workspace.span();
      if (caches[u].size() > 0) a.kv_cache = caches[u].data();
      a.kv_capacity = capacity;
      if (u + 1 < model.spec.units.size()) {
        run_sublayer(OpKind::forward, a);
      } else {
        logits.emplace_back(static_cast<std::size_t>(config.vocabulary));
        a.logits = logits.back().data();
        run_sublayer(OpKind::logits, a);
      }
      EXPECT_TRUE(workspace.intact() && caches[u].intact() && x[0].intact() && x[1].intact()) << u;
    }
    position += length;
  }
  return logits;
}

TEST_P(Decode, equals_the_full_forward_pass) {
  ModelConfig config = GetParam();
  config.layers = 2;
  const BatchShape shape{1, 340};
  const auto tokens = test::some_tokens(shape, config.vocabulary, 4);
  ModelRunner full(config, shape, Dtype::f32);
  full.initialise(5);
  full.forward(tokens.data(), false);
  const auto all = full.logits();
  const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>(20, 1), std::vector<std::int64_t>{300, 1, 1, 38}, std::vector<std::int64_t>{340}}) {
    const auto logits = decode(config, tokens, pieces);
    std::int64_t position = -1;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      position += pieces[p];
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const double expected = all[static_cast<std::size_t>(position) * vocabulary + i];
        difference += std::pow(static_cast<double>(logits[p][i]) - expected, 2);
        norm += expected * expected;
      }
      EXPECT_LE(std::sqrt(difference / norm), 1e-5) << "position " << position;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Decode, testing::ValuesIn(test::small_models()),
                         [](const auto& model) { return test::model_name(model); });

}  // namespace
}  // namespace sluice
