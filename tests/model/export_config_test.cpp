// config.json of an exported model, read back, is the same model.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "src/model/model.h"
#include "src/train/states/export.h"

namespace sluice {
namespace {

using nlohmann::json;

auto fields(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  return std::tuple(
      std::tuple(c.family, c.vocabulary, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn, c.max_positions,
                 c.window, c.norm_eps, c.rope_theta, c.tied, c.qkv_bias, c.qk_norm, c.fused, c.init_std),
      std::tuple(s.kind, s.factor, s.low_freq_factor, s.high_freq_factor, s.original_max_positions, s.beta_fast,
                 s.beta_slow, s.attention_factor, s.mscale, s.mscale_all_dim, s.truncate));
}

void expect_same_back(const ModelConfig& config) {
  const std::string text = hf_config_json(config, Dtype::bf16);
  const auto back = parse_hf_config(text, "exported");
  ASSERT_TRUE(back.ok()) << back.error().message << text;
  EXPECT_TRUE(fields(*back) == fields(config)) << text << hf_config_json(*back, Dtype::bf16);
}

json base(const std::string& type) {
  return {{"model_type", type},       {"vocab_size", 512},
          {"hidden_size", 64},        {"num_hidden_layers", 3},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 128}, {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-6},     {"head_dim", 32}};
}

TEST(ExportedConfig, presets_come_back) {
  for (const std::string& name : preset_names()) expect_same_back(preset_config(name).value());
}

TEST(ExportedConfig, whatever_is_imported_comes_back) {
  const json scaling[] = {
      nullptr,
      {{"rope_type", "linear"}, {"factor", 4.0}},
      {{"rope_type", "dynamic"}, {"factor", 2.5}, {"original_max_position_embeddings", 1024}},
      {{"rope_type", "llama3"},
       {"factor", 8.0},
       {"low_freq_factor", 1.0},
       {"high_freq_factor", 4.0},
       {"original_max_position_embeddings", 1024}},
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}, {"truncate", false}},
      {{"rope_type", "yarn"},
       {"factor", 4.0},
       {"beta_fast", 16},
       {"mscale", 0.7},
       {"mscale_all_dim", 0.5},
       {"attention_factor", 1.1}}};
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "smollm", "phi3"})
    for (const json& rope : scaling)
      for (const bool tied : {false, true})
        for (const bool window : {false, true}) {
          if (std::string(type) == "phi3" && !rope.is_null()) continue;
          json j = base(type);
          j["rope_scaling"] = rope;
          j["rope_theta"] = 5e5;
          j["tie_word_embeddings"] = tied;
          j["initializer_range"] = tied ? 0.02 : 0.006;
          j["sliding_window"] = window ? json(256) : json(nullptr);
          j["use_sliding_window"] = window;
          j["max_window_layers"] = 0;
          SCOPED_TRACE(j.dump());
          const auto config = parse_hf_config(j.dump(), "given");
          ASSERT_TRUE(config.ok()) << config.error().message;
          expect_same_back(*config);
        }
}

}  // namespace
}  // namespace sluice
