#include "src/train/export.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/publish.h"
#include "io/safetensors.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Json rope_scaling_json(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  const auto original = static_cast<std::int64_t>(s.original_max_positions);
  switch (s.kind) {
    case RopeScaling::Kind::none: return nullptr;
    case RopeScaling::Kind::linear: return {{"rope_type", "linear"}, {"factor", s.factor}};
    case RopeScaling::Kind::dynamic: return {{"rope_type", "dynamic"}, {"factor", s.factor}};
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

Json llama_json(const ModelConfig& c) {
  const char* type = c.qk_norm ? "qwen3" : c.qkv_bias ? "qwen2" : c.window > 0 ? "mistral" : "llama";
  const char* architecture = c.qk_norm      ? "Qwen3ForCausalLM"
                             : c.qkv_bias   ? "Qwen2ForCausalLM"
                             : c.window > 0 ? "MistralForCausalLM"
                                            : "LlamaForCausalLM";
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
  return j;
}

}  // namespace

std::string hf_config_json(const ModelConfig& config, Dtype dtype) {
  Json j = config.family == Family::gpt2 ? gpt2_json(config) : llama_json(config);
  j["torch_dtype"] = dtype == Dtype::bf16 ? "bfloat16" : "float32";
  return j.dump(2) + "\n";
}

Status export_model(Engine& engine, const Prepared& run, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return bad_request(directory + ": cannot be made: " + error.message());
  std::vector<SafeTensorsWriter::Tensor> tensors;
  for (const UnitSpec& u : run.model.units)
    for (const TensorSpec& t : u.tensors)
      tensors.push_back({t.name, to_tensor_dtype(run.workload.dtype), {t.shape.begin(), t.shape.end()}});
  SLUICE_ASSIGN(SafeTensorsWriter writer,
                SafeTensorsWriter::create(directory + "/model.safetensors", tensors, {{"format", "pt"}}));
  const std::uint64_t size = dtype_bytes(run.workload.dtype);
  // A piece of the flat buffer may cover the ends of several tensors.
  const auto write_piece = [&](UnitId unit, std::uint64_t first, std::span<const std::byte> data) -> Status {
    for (const TensorSpec& t : run.model.units[static_cast<std::size_t>(unit)].tensors) {
      const std::uint64_t begin = std::max(first, t.offset);
      const std::uint64_t end = std::min(first + data.size() / size, t.offset + t.numel);
      if (begin >= end) continue;
      SLUICE_TRY(
          writer.write(t.name, (begin - t.offset) * size, data.subspan((begin - first) * size, (end - begin) * size)));
    }
    return success();
  };
  SLUICE_TRY(engine.visit_states(std::array{StateKind::parameter}, write_piece));
  SLUICE_TRY(writer.finish());
  return publish_file(directory + "/config.json", hf_config_json(run.model.config, run.workload.dtype));
}

}  // namespace sluice
