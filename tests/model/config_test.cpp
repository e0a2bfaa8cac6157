// Configurations: presets, what Hugging Face writes, and what is refused with one line.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/model/model.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

using nlohmann::json;

json llama_json() {
  return {{"model_type", "llama"},    {"vocab_size", 1000},       {"hidden_size", 64},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 128}, {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 256},
          {"torch_dtype", "bfloat16"}};
}
json gpt2_json() {
  return {{"model_type", "gpt2"}, {"vocab_size", 1000}, {"n_embd", 64},
          {"n_layer", 2},         {"n_head", 4},        {"n_positions", 128}};
}

Result<ModelConfig> parse(const json& j) { return parse_hf_config(j.dump(), "config.json"); }

void expect_refused(const json& j, const std::string& naming) {
  const auto config = parse(j);
  ASSERT_FALSE(config.ok()) << j.dump();
  EXPECT_EQ(config.error().code, ErrorCode::bad_request);
  EXPECT_NE(config.error().message.find(naming), std::string::npos) << config.error().message;
  EXPECT_EQ(config.error().message.find("config.json"), 0u) << config.error().message;
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
}

TEST(Presets, parameter_counts) {
  const std::vector<std::pair<std::string, std::uint64_t>> published{
      {"llama-7b", 6738415616}, {"llama-8b", 8030261248}, {"llama-13b", 13015864320}, {"llama-70b", 68976648192},
      {"llama-1b", 1100048384}, {"gpt2-124m", 124439808}, {"gpt2-1.5b", 1557611200}};
  for (const auto& [name, parameters] : published)
    EXPECT_EQ(build_model(preset_config(name).value()).parameters, parameters) << name;
  const std::vector<std::pair<std::string, double>> about{
      {"llama-tiny", 0.8e6}, {"llama-25m", 25e6}, {"llama-125m", 134e6}, {"llama-3b", 3.5e9}};
  for (const auto& [name, parameters] : about)
    EXPECT_NEAR(static_cast<double>(build_model(preset_config(name).value()).parameters) / parameters, 1, 0.05) << name;
  EXPECT_EQ(preset_names().size(), published.size() + about.size());
}

TEST(Presets, unknown_name_lists_the_known) {
  const auto config = load_config("llama-9000b");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::bad_request);
  for (const std::string& name : preset_names())
    EXPECT_NE(config.error().message.find(name), std::string::npos) << name;
}

TEST(Units, tensors_are_aligned_and_apart) {
  for (const char* name : {"llama-tiny", "llama-25m", "gpt2-124m"}) {
    const ModelSpec model = build_model(preset_config(name).value());
    EXPECT_EQ(model.units.size(), static_cast<std::size_t>(2 * model.config.layers + 2));
    std::uint32_t index = 0;
    for (const UnitSpec& unit : model.units) {
      std::uint64_t end = 0;
      EXPECT_EQ(unit.numel % 4096, 0u);
      for (const TensorSpec& t : unit.tensors) {
        EXPECT_EQ(t.offset % tensor_alignment_numel, 0u) << t.name;
        EXPECT_GE(t.offset, end) << t.name;
        EXPECT_EQ(t.decay, t.shape.size() >= 2) << t.name;
        EXPECT_EQ(t.index, index++);
        end = t.offset + t.numel;
      }
      EXPECT_LE(end, unit.numel);
      EXPECT_LT(unit.numel - end, 4096u);
    }
  }
}

TEST(HfConfig, llama) {
  const auto c = parse(llama_json());
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->head_dim, 16);
  EXPECT_EQ(c->kv_heads, 2);
  EXPECT_EQ(c->ffn, 128);
  EXPECT_FALSE(c->tied);
  EXPECT_EQ(c->window, 0);
  EXPECT_FLOAT_EQ(c->norm_eps, 1e-5f);
  EXPECT_DOUBLE_EQ(c->rope_theta, 10000);
}

TEST(HfConfig, families_differ_where_transformers_does) {
  json j = llama_json();
  j["model_type"] = "qwen2";
  EXPECT_TRUE(parse(j)->qkv_bias);
  EXPECT_EQ(parse(j)->window, 0);
  j["model_type"] = "qwen3";
  EXPECT_TRUE(parse(j)->qk_norm);
  EXPECT_EQ(parse(j)->head_dim, 128);
  j["model_type"] = "mistral";
  EXPECT_EQ(parse(j)->window, 4096);
  j["sliding_window"] = nullptr;
  EXPECT_EQ(parse(j)->window, 0);
  j["sliding_window"] = 7;
  EXPECT_EQ(parse(j)->window, 7);
  j["model_type"] = "smollm";
  EXPECT_EQ(parse(j)->window, 0);
}

TEST(HfConfig, qwen_window_is_on_all_layers_or_none) {
  json j = llama_json();
  j["model_type"] = "qwen2";
  j["use_sliding_window"] = true;
  j["sliding_window"] = 8;
  EXPECT_EQ(parse(j)->window, 0) << "max_window_layers is 28";
  j["max_window_layers"] = 0;
  EXPECT_EQ(parse(j)->window, 8);
  j["max_window_layers"] = 1;
  expect_refused(j, "sliding_window");
  j["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse(j)->window, 8);
  j["layer_types"] = {"sliding_attention", "full_attention"};
  expect_refused(j, "sliding_window");
  j["layer_types"] = {"full_attention"};
  expect_refused(j, "layer_types");
}

TEST(HfConfig, phi3) {
  json j = llama_json();
  j["model_type"] = "phi3";
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "max_position_embeddings"}) j.erase(key);
  const auto c = parse(j);
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_TRUE(c->fused);
  EXPECT_EQ(c->kv_heads, 4);
  EXPECT_EQ(c->max_positions, 4096);
  EXPECT_FLOAT_EQ(c->norm_eps, 1e-5f);
  EXPECT_EQ(c->window, 0);
  j["sliding_window"] = 2047;
  j["resid_pdrop"] = j["embd_pdrop"] = 0.0;
  j["original_max_position_embeddings"] = 4096;
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e4}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(parse(j)->window, 2047);
  EXPECT_DOUBLE_EQ(parse(j)->rope_theta, 5e4);
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attention_dropout"}) {
    json dropped = j;
    dropped[key] = 0.1;
    expect_refused(dropped, key);
  }
  for (const char* kind : {"longrope", "su", "yarn", "linear", "llama3"}) {
    j["rope_parameters"] = {{"rope_type", kind}, {"factor", 2.0}, {"short_factor", {1.0}}, {"long_factor", {4.0}}};
    expect_refused(j, std::string("'") + kind + "' of model_type phi3");
  }
  j["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.75}};
  expect_refused(j, "partial_rotary_factor");
}

TEST(Units, phi3_stores_neighbours_as_one) {
  json j = llama_json();
  const ModelSpec llama = build_model(parse(j).value());
  j["model_type"] = "phi3";
  const ModelSpec phi3 = build_model(parse(j).value());
  ASSERT_EQ(phi3.units.size(), llama.units.size());
  for (std::size_t u = 0; u < phi3.units.size(); ++u) {
    ASSERT_EQ(phi3.units[u].tensors.size(), llama.units[u].tensors.size());
    EXPECT_EQ(phi3.units[u].numel, llama.units[u].numel);
    for (std::size_t i = 0; i < phi3.units[u].tensors.size(); ++i) {
      const TensorSpec &a = phi3.units[u].tensors[i], &b = llama.units[u].tensors[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.offset, b.offset);
      EXPECT_EQ(a.index, b.index);
      EXPECT_EQ(b.stored.name, b.name);
      EXPECT_EQ(b.stored.shape, b.shape);
      EXPECT_EQ(b.stored.first, 0u);
    }
  }
  const UnitSpec &attention = phi3.units[3], &mlp = phi3.units[4];
  const std::vector<std::int64_t> qkv{64 + 2 * 32, 64}, gate_up{2 * 128, 64};
  std::uint64_t first = 0;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
    const TensorSpec* t = attention.tensor(name);
    EXPECT_EQ(t->stored.name, "model.layers.1.self_attn.qkv_proj.weight");
    EXPECT_EQ(t->stored.shape, qkv);
    EXPECT_EQ(t->stored.first, first);
    first += t->numel;
  }
  EXPECT_EQ(mlp.tensor("up_proj.weight")->stored.name, "model.layers.1.mlp.gate_up_proj.weight");
  EXPECT_EQ(mlp.tensor("up_proj.weight")->stored.shape, gate_up);
  EXPECT_EQ(mlp.tensor("up_proj.weight")->stored.first, 128u * 64);
}

TEST(HfConfig, gpt2) {
  json j = gpt2_json();
  j["resid_pdrop"] = 0.1;
  const auto c = parse(j);
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->family, Family::gpt2);
  EXPECT_EQ(c->ffn, 256);
  EXPECT_TRUE(c->tied);
  j["n_inner"] = 100;
  EXPECT_EQ(parse(j)->ffn, 100);
}

TEST(HfConfig, refuses_missing_fields) {
  for (const char* key :
       {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    json j = llama_json();
    j.erase(key);
    expect_refused(j, key);
    j[key] = nullptr;
    expect_refused(j, key);
  }
  for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_head", "n_positions"}) {
    json j = gpt2_json();
    j.erase(key);
    expect_refused(j, key);
  }
}

TEST(HfConfig, refuses_absurd_values) {
  const std::vector<std::pair<std::string, json>> absurd{{"vocab_size", -1},
                                                         {"vocab_size", 0},
                                                         {"vocab_size", 1e30},
                                                         {"vocab_size", 18446744073709551615ull},
                                                         {"vocab_size", "many"},
                                                         {"hidden_size", 62},
                                                         {"hidden_size", 1 << 30},
                                                         {"hidden_size", 64.5},
                                                         {"num_hidden_layers", 0},
                                                         {"num_hidden_layers", 100000},
                                                         {"num_attention_heads", 0},
                                                         {"num_key_value_heads", 3},
                                                         {"num_key_value_heads", -2},
                                                         {"intermediate_size", -128},
                                                         {"head_dim", 15},
                                                         {"head_dim", 0},
                                                         {"rms_norm_eps", -1},
                                                         {"rms_norm_eps", "small"},
                                                         {"rope_theta", 0},
                                                         {"rope_theta", -5},
                                                         {"max_position_embeddings", 0},
                                                         {"max_position_embeddings", 1ull << 40},
                                                         {"hidden_act", "gelu"},
                                                         {"attention_bias", true},
                                                         {"mlp_bias", true},
                                                         {"attention_dropout", 0.1},
                                                         {"tie_word_embeddings", 1},
                                                         {"model_type", "mamba"},
                                                         {"model_type", 5},
                                                         {"initializer_range", -0.1},
                                                         {"partial_rotary_factor", 0.5},
                                                         {"rope_scaling", 3}};
  for (const auto& [key, value] : absurd) {
    json j = llama_json();
    j[key] = value;
    expect_refused(j, key);
  }
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{"n_embd", 65},
                                                 {"n_head", 0},
                                                 {"activation_function", "relu"},
                                                 {"scale_attn_weights", false},
                                                 {"add_cross_attention", true},
                                                 {"scale_attn_by_inverse_layer_idx", true}}) {
    json j = gpt2_json();
    j[key] = value;
    expect_refused(j, key);
  }
}

TEST(HfConfig, refuses_shapes_that_do_not_fit_together) {
  json j = llama_json();
  j["num_key_value_heads"] = 8;
  expect_refused(j, "num_attention_heads 4 is not a multiple of num_key_value_heads 8");
  j = llama_json();
  j["num_attention_heads"] = 3;
  expect_refused(j, "not a multiple");
  j["hidden_size"] = 40;
  j["num_attention_heads"] = 4;
  expect_refused(j, "hidden_size 40");
  j["hidden_size"] = 64;
  j["intermediate_size"] = 99;
  expect_refused(j, "intermediate_size 99");
  j = llama_json();  // tensors of 64 elements would have gaps between them
  j["hidden_size"] = 16;
  j["head_dim"] = 4;
  j["num_key_value_heads"] = 1;
  expect_refused(j, "hidden_size 16 x 1 key-value heads x head_dim 4 is not a multiple of 256");
}

TEST(HfConfig, refuses_rope_scaling_it_cannot_compute) {
  const std::vector<std::pair<std::string, json>> wrong{
      {"rope_type", {{"rope_type", "longrope"}, {"factor", 2}}},
      {"factor", {{"rope_type", "linear"}}},
      {"factor", {{"type", "linear"}, {"factor", 0.5}}},
      {"factor", {{"type", "dynamic"}, {"factor", "two"}}},
      {"low_freq_factor", {{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}},
      {"high_freq_factor", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}},
      {"partial_rotary_factor", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}}};
  for (const char* key : {"rope_scaling", "rope_parameters"})
    for (const auto& [field, rope] : wrong) {
      json j = llama_json();
      j[key] = rope;
      expect_refused(j, field);
    }
}

TEST(HfConfig, refuses_what_is_no_object) {
  for (const std::string text : {"", "[1, 2]", "{\"model_type\": ", "42", "null", "\xff\xfe"}) {
    const auto config = parse_hf_config(text, "x.json");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().message.find("x.json: not "), 0u) << config.error().message;
  }
  EXPECT_FALSE(parse_hf_config(std::string(2 << 20, ' ') + "{}", "x.json").ok());
  EXPECT_FALSE(parse_hf_config(std::string(1 << 19, '['), "x.json").ok());
}

TEST(LoadConfig, file_directory_and_neither) {
  const ScratchDir folder;
  std::ofstream(folder / "config.json") << llama_json();
  EXPECT_TRUE(load_config(folder.path()).ok());
  EXPECT_TRUE(load_config(folder / "config.json").ok());
  const auto missing = load_config(folder / "absent.json");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("absent.json"), std::string::npos);
  std::filesystem::create_directories(folder / "empty");
  EXPECT_FALSE(load_config(folder / "empty").ok());
}

}  // namespace
}  // namespace sluice
