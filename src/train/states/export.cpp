#include "src/train/states/export.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/train/run/companions.h"
#include "src/train/states/joined_parts.h"
#include "src/train/states/model_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr double default_init_std = 0.02;  // of every family

Json rope_scaling_json(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const auto original = static_cast<std::int64_t>(s.original_max_positions);
  switch (s.kind) {
    case RopeScaling::Kind::none: return nullptr;
    case RopeScaling::Kind::linear:
    case RopeScaling::Kind::dynamic: {
      Json j{{"rope_type", s.kind == RopeScaling::Kind::linear ? "linear" : "dynamic"}, {"factor", s.factor}};
      if (original != c.max_positions) j["original_max_position_embeddings"] = original;
      return j;
    }
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", original}};
    case RopeScaling::Kind::yarn: {
      Json j{{"rope_type", "yarn"},
             {"factor", s.factor},
             {"beta_fast", s.beta_fast},
             {"beta_slow", s.beta_slow},
             {"original_max_position_embeddings", original}};
      if (s.attention_factor > 0) j["attention_factor"] = s.attention_factor;
      if (s.mscale > 0) j["mscale"] = s.mscale;
      if (s.mscale_all_dim > 0) j["mscale_all_dim"] = s.mscale_all_dim;
      if (!s.truncate) j["truncate"] = false;
      return j;
    }
  }
  return nullptr;
}

Json gpt2_json(const ModelConfig& c) {
  return {{"model_type", "gpt2"},
          {"architectures", Json::array({"GPT2LMHeadModel"})},
          {"vocab_size", c.vocabulary},
          {"n_embd", c.hidden},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_inner", c.ffn},
          {"n_positions", c.max_positions},
          {"layer_norm_epsilon", c.norm_eps},
          {"activation_function", "gelu_new"},
          {"tie_word_embeddings", c.tied}};
}

struct LlamaKind {
  const char *type, *architecture;
};

LlamaKind llama_kind(const ModelConfig& c) {
  if (c.fused) return {"phi3", "Phi3ForCausalLM"};
  if (c.qk_norm) return {"qwen3", "Qwen3ForCausalLM"};
  if (c.qkv_bias) return {"qwen2", "Qwen2ForCausalLM"};
  if (c.window > 0 || c.name == "mistral") return {"mistral", "MistralForCausalLM"};
  return {"llama", "LlamaForCausalLM"};
}

Json llama_json(const ModelConfig& c) {
  const auto [type, architecture] = llama_kind(c);
  Json j{{"model_type", type},
         {"architectures", Json::array({architecture})},
         {"vocab_size", c.vocabulary},
         {"hidden_size", c.hidden},
         {"num_hidden_layers", c.layers},
         {"num_attention_heads", c.heads},
         {"num_key_value_heads", c.kv_heads},
         {"head_dim", c.head_dim},
         {"intermediate_size", c.ffn},
         {"max_position_embeddings", c.max_positions},
         {"rms_norm_eps", c.norm_eps},
         {"rope_theta", c.rope_theta},
         {"rope_scaling", rope_scaling_json(c)},
         {"hidden_act", "silu"},
         {"tie_word_embeddings", c.tied}};
  if (c.window > 0) j["sliding_window"] = c.window;
  // Without the field the window would be the default one.
  if (c.window == 0 && std::string_view(type) == "mistral") j["sliding_window"] = nullptr;
  if (c.window > 0 && (c.qkv_bias || c.qk_norm)) {
    j["use_sliding_window"] = true;
    j["max_window_layers"] = 0;
  }
  return j;
}

}  // namespace

std::string hf_config_json(const ModelConfig& config, Dtype dtype) {
  Json j = config.family == Family::gpt2 ? gpt2_json(config) : llama_json(config);
  if (config.init_std != default_init_std) j["initializer_range"] = config.init_std;
  j["torch_dtype"] = dtype == Dtype::bf16 ? "bfloat16" : dtype == Dtype::f16 ? "float16" : "float32";
  return j.dump(2) + "\n";
}

Status export_model(Engine& engine, const Prepared& run, const std::string& directory, const std::string& companions) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return bad_request(directory + ": cannot be made: " + error.message());
  SLUICE_ASSIGN(ModelWriter writer, ModelWriter::create(run.model, directory, run.workload.dtype));
  const Workload& w = run.workload;
  const std::array kinds{StateKind::parameter};
  if (w.split == nullptr) {
    SLUICE_TRY(
        engine.states().visit_states(kinds, [&](UnitId unit, std::uint64_t first, std::span<const std::byte> data) {
          return writer.write(unit, first, data);
        }));
  } else {
    const ShardMap map = w.shard_map();
    JoinedParts joined(*w.split, run.model, dtype_bytes(w.dtype),
                       [&](UnitId unit, std::span<const std::byte> data) { return writer.write(unit, 0, data); });
    SLUICE_TRY(
        engine.states().visit_states(kinds, [&](UnitId unit, std::uint64_t first, std::span<const std::byte> data) {
          const std::uint64_t full = map.full_numel(unit);
          return joined.add(unit, static_cast<RankId>(first / full), first % full, data);
        }));
  }
  SLUICE_TRY(writer.finish());
  SLUICE_ASSIGN(const std::string config,
                config_with_companions(run.model.config, run.workload.dtype, companions, Json::object()));
  const auto written = write_companions(companions, directory, config);
  return written.ok() ? success() : Status(written.error());
}

}  // namespace sluice
