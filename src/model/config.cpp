// Hugging Face config.json, checked: what sluice does not compute is refused, never ignored.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "io/files/json_guard.h"
#include "io/files/publish.h"
#include "sluice/size.h"
#include "src/model/config_fields.h"
#include "src/model/model.h"
#include "src/model/weights_name.h"

namespace sluice {
namespace {

constexpr std::size_t max_config_bytes = 1u << 20;
constexpr std::int64_t max_layers = 4096, max_heads = 4096, max_head_dim = 4096, max_hidden = 1 << 17;
constexpr std::int64_t max_ffn = 1 << 20, max_vocabulary = 1 << 22, max_context = 1 << 24;

Status read_rope_kind(const Fields& rope, bool phi3, RopeScaling* s) {
  SLUICE_ASSIGN(const std::string old_key, rope.text("type", "default"));
  SLUICE_ASSIGN(const std::string kind, rope.text("rope_type", old_key));
  using Kind = RopeScaling::Kind;
  // Of Phi-3, "yarn" is an old name of longrope.
  if (phi3 && kind != "default")
    return rope.refuse("rope_type", fmt::format("'{}' of model_type phi3 is not supported, where factors depend on the "
                                                "length of the text; default is",
                                                kind.substr(0, 40)));
  if (kind == "default")
    s->kind = Kind::none;
  else if (kind == "linear")
    s->kind = Kind::linear;
  else if (kind == "dynamic")
    s->kind = Kind::dynamic;
  else if (kind == "llama3")
    s->kind = Kind::llama3;
  else if (kind == "yarn")
    s->kind = Kind::yarn;
  else
    return rope.refuse("rope_type", fmt::format("'{}' is not supported; default, linear, dynamic, llama3, yarn are",
                                                kind.substr(0, 40)));
  return success();
}

/// The fields of `rope_scaling`, or of `rope_parameters` as transformers 5 writes it.
Status read_rope(const Fields& rope, ModelConfig* c) {
  RopeScaling& s = c->rope_scaling;
  SLUICE_TRY(read_rope_kind(rope, c->fused, &s));
  SLUICE_ASSIGN(c->rope_theta, rope.number("rope_theta", c->rope_theta, 1.0, 1e12));
  SLUICE_ASSIGN(const double partial, rope.number("partial_rotary_factor", 1.0, 0.0, 1.0));
  if (partial != 1.0) return rope.refuse("partial_rotary_factor", "other than 1 is not supported");
  if (s.kind == RopeScaling::Kind::none) return success();
  const double positions = static_cast<double>(c->max_positions);
  SLUICE_ASSIGN(s.original_max_positions, rope.number("original_max_position_embeddings", positions, 1.0, 1e9));
  if (s.kind == RopeScaling::Kind::yarn && !rope.has("factor")) {
    s.factor = std::max(1.0, positions / s.original_max_positions);
  } else {
    SLUICE_ASSIGN(s.factor, rope.required_number("factor", 1.0, 1e6));
  }
  if (s.kind == RopeScaling::Kind::llama3) {
    SLUICE_ASSIGN(s.low_freq_factor, rope.required_number("low_freq_factor", 1e-6, 1e6));
    SLUICE_ASSIGN(s.high_freq_factor, rope.required_number("high_freq_factor", 1e-6, 1e6));
    if (s.high_freq_factor <= s.low_freq_factor)
      return rope.refuse("high_freq_factor", "must be larger than low_freq_factor");
  }
  if (s.kind == RopeScaling::Kind::yarn) {
    SLUICE_ASSIGN(s.beta_fast, rope.number("beta_fast", 32, 1e-6, 1e6));
    SLUICE_ASSIGN(s.beta_slow, rope.number("beta_slow", 1, 1e-6, 1e6));
    SLUICE_ASSIGN(s.attention_factor, rope.number("attention_factor", 0, 0, 1e3));
    SLUICE_ASSIGN(s.mscale, rope.number("mscale", 0, 0, 1e3));
    SLUICE_ASSIGN(s.mscale_all_dim, rope.number("mscale_all_dim", 0, 0, 1e3));
    SLUICE_ASSIGN(s.truncate, rope.flag("truncate", true));
  }
  return success();
}

Status read_rope(const Fields& f, double default_theta, ModelConfig* c) {
  SLUICE_ASSIGN(c->rope_theta, f.number("rope_theta", default_theta, 1.0, 1e12));
  SLUICE_ASSIGN(const double partial, f.number("partial_rotary_factor", 1.0, 0.0, 1.0));
  if (partial != 1.0) return f.refuse("partial_rotary_factor", "other than 1 is not supported");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!f.has(key)) continue;
    SLUICE_ASSIGN(const Fields rope, f.object(key));
    SLUICE_TRY(read_rope(rope, c));
  }
  return success();
}

/// Qwen's window holds from layer max_window_layers on, or where layer_types says; only all layers or none are
/// supported.
Status read_window(const Fields& f, const std::string& type, ModelConfig* c) {
  if (type == "llama") return success();
  const bool qwen = type == "qwen2" || type == "qwen3";
  SLUICE_ASSIGN(const bool used, f.flag("use_sliding_window", !qwen));
  SLUICE_ASSIGN(const std::int64_t window,
                f.nullable_integer("sliding_window", type == "phi3" ? 0 : 4096, 1, max_context));
  std::int64_t first = 0;
  if (qwen) {
    SLUICE_ASSIGN(first, f.integer("max_window_layers", 28, 0, std::numeric_limits<std::int32_t>::max()));
  }
  std::int64_t with_window = used && window > 0 ? c->layers - std::min(first, c->layers) : 0;
  if (f.has("layer_types")) {
    SLUICE_ASSIGN(const auto types, f.texts("layer_types"));
    if (static_cast<std::int64_t>(types.size()) != c->layers)
      return f.refuse("layer_types", fmt::format("has {} entries for {} layers", types.size(), c->layers));
    with_window = 0;
    for (const std::string& t : types) {
      if (t != "sliding_attention" && t != "full_attention")
        return f.refuse("layer_types", fmt::format("'{}' is not supported", t.substr(0, 40)));
      with_window += t == "sliding_attention";
    }
    if (with_window > 0 && window == 0) return f.refuse("sliding_window", "is needed by layer_types");
  }
  if (with_window != 0 && with_window != c->layers)
    return f.refuse("sliding_window",
                    fmt::format("on {} of {} layers is not supported, only on all or none", with_window, c->layers));
  c->window = with_window > 0 ? window : 0;
  return success();
}

/// What would change the arithmetic and is not implemented.
Status refuse_unsupported_llama(const Fields& f) {
  SLUICE_ASSIGN(const std::string activation, f.text("hidden_act", "silu"));
  if (activation != "silu")
    return f.refuse("hidden_act", fmt::format("'{}' is not supported, only 'silu' is", activation.substr(0, 40)));
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    SLUICE_ASSIGN(const bool bias, f.flag(key, false));
    if (bias) return f.refuse(key, "true is not supported for this model_type");
  }
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"}) {
    SLUICE_ASSIGN(const double dropout, f.number(key, 0, 0, 1));
    if (dropout > 0) return f.refuse(key, "other than 0 is not supported");
  }
  return success();
}

/// Matrices that are multiplied as one (q, k, v; gate, up) lie one after the other, each aligned as all tensors are.
Status check_shapes(const Fields& f, const ModelConfig& c) {
  if (c.heads % c.kv_heads != 0)
    return f.refuse("num_attention_heads",
                    fmt::format("{} is not a multiple of num_key_value_heads {}", c.heads, c.kv_heads));
  if (c.head_dim % 2 != 0)
    return f.refuse("head_dim", fmt::format("{} is odd; rotary positions need an even one", c.head_dim));
  if (c.hidden * c.kv_heads * c.head_dim % tensor_alignment_numel != 0)
    return f.refuse("hidden_size", fmt::format("{} x {} key-value heads x head_dim {} is not a multiple of {}",
                                               c.hidden, c.kv_heads, c.head_dim, tensor_alignment_numel));
  if (c.hidden * c.ffn % tensor_alignment_numel != 0)
    return f.refuse("intermediate_size", fmt::format("{} x hidden_size {} is not a multiple of {}", c.ffn, c.hidden,
                                                     tensor_alignment_numel));
  return success();
}

Result<ModelConfig> parse_llama(const Fields& f, const std::string& type) {
  ModelConfig c;
  c.family = Family::llama;
  SLUICE_TRY(refuse_unsupported_llama(f));
  SLUICE_ASSIGN(c.vocabulary, f.required_integer("vocab_size", 1, max_vocabulary));
  SLUICE_ASSIGN(c.hidden, f.required_integer("hidden_size", 1, max_hidden));
  SLUICE_ASSIGN(c.layers, f.required_integer("num_hidden_layers", 1, max_layers));
  SLUICE_ASSIGN(c.heads, f.required_integer("num_attention_heads", 1, max_heads));
  SLUICE_ASSIGN(c.ffn, f.required_integer("intermediate_size", 1, max_ffn));
  const std::int64_t default_kv = type == "mistral" ? 8 : c.heads;
  SLUICE_ASSIGN(c.kv_heads, f.integer("num_key_value_heads", default_kv, 1, max_heads));
  const bool own_head_dim = f.has("head_dim");
  if (!own_head_dim && type != "qwen3" && c.hidden % c.heads != 0)
    return f.refuse("hidden_size", fmt::format("{} is not a multiple of num_attention_heads {}", c.hidden, c.heads));
  SLUICE_ASSIGN(c.head_dim, f.integer("head_dim", type == "qwen3" ? 128 : c.hidden / c.heads, 1, max_head_dim));
  SLUICE_TRY(check_shapes(f, c));
  const std::int64_t default_positions = type == "mistral" ? 131072
                                         : type == "llama" ? 2048
                                         : type == "phi3"  ? 4096
                                                           : 32768;
  SLUICE_ASSIGN(c.max_positions, f.integer("max_position_embeddings", default_positions, 1, max_context));
  SLUICE_ASSIGN(const double eps, f.number("rms_norm_eps", type == "phi3" ? 1e-5 : 1e-6, 0, 1));
  c.norm_eps = static_cast<float>(eps);
  SLUICE_ASSIGN(c.init_std, f.number("initializer_range", 0.02, 0, 10));
  SLUICE_ASSIGN(c.tied, f.flag("tie_word_embeddings", false));
  c.qkv_bias = type == "qwen2";
  c.qk_norm = type == "qwen3";
  c.fused = type == "phi3";
  SLUICE_TRY(read_rope(f, 10000, &c));
  SLUICE_TRY(read_window(f, type, &c));
  return c;
}

/// Dropout of a GPT-2 config is ignored: sluice trains without, and every published GPT-2 config names it.
Result<ModelConfig> parse_gpt2(const Fields& f) {
  ModelConfig c;
  c.family = Family::gpt2;
  SLUICE_ASSIGN(const std::string activation, f.text("activation_function", "gelu_new"));
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    return f.refuse("activation_function",
                    fmt::format("'{}' is not supported, only 'gelu_new' is", activation.substr(0, 40)));
  SLUICE_ASSIGN(const bool scaled, f.flag("scale_attn_weights", true));
  if (!scaled) return f.refuse("scale_attn_weights", "false is not supported");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    SLUICE_ASSIGN(const bool set, f.flag(key, false));
    if (set) return f.refuse(key, "true is not supported");
  }
  SLUICE_ASSIGN(c.vocabulary, f.required_integer("vocab_size", 1, max_vocabulary));
  SLUICE_ASSIGN(c.hidden, f.required_integer("n_embd", 1, max_hidden));
  SLUICE_ASSIGN(c.layers, f.required_integer("n_layer", 1, max_layers));
  SLUICE_ASSIGN(c.heads, f.required_integer("n_head", 1, max_heads));
  SLUICE_ASSIGN(c.max_positions, f.required_integer("n_positions", 1, max_context));
  if (c.hidden % c.heads != 0)
    return f.refuse("n_embd", fmt::format("{} is not a multiple of n_head {}", c.hidden, c.heads));
  c.kv_heads = c.heads;
  c.head_dim = c.hidden / c.heads;
  if (c.head_dim > max_head_dim)
    return f.refuse("n_head",
                    fmt::format("{} makes heads of {} elements, more than {}", c.heads, c.head_dim, max_head_dim));
  SLUICE_ASSIGN(c.ffn, f.integer("n_inner", 4 * c.hidden, 1, max_ffn));
  SLUICE_ASSIGN(const double eps, f.number("layer_norm_epsilon", 1e-5, 0, 1));
  c.norm_eps = static_cast<float>(eps);
  SLUICE_ASSIGN(c.init_std, f.number("initializer_range", 0.02, 0, 10));
  SLUICE_ASSIGN(c.tied, f.flag("tie_word_embeddings", true));
  return c;
}

/// Routed experts are other weights for every token: no field of a dense model says them.
Status refuse_experts(const Fields& f, const std::string& type) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"})
    if (f.has(key))
      return f.refuse(
          key, fmt::format("makes model_type '{}' a mixture of experts, which is not supported", type.substr(0, 40)));
  return success();
}

}  // namespace

Result<ModelConfig> parse_hf_config(const std::string& json_text, const std::string& origin) {
  if (json_text.size() > max_config_bytes)
    return bad_request(origin + ": larger than 1 MiB, not a model's config.json");
  if (const Status sane = check_json(json_text); !sane.ok())
    return bad_request(origin + ": not a model's configuration: " + sane.error().message);
  const nlohmann::json json = nlohmann::json::parse(json_text, nullptr, false);
  if (!json.is_object()) return bad_request(origin + ": not a JSON object");
  const Fields f(json, origin);
  SLUICE_ASSIGN(std::string type, f.required_text("model_type"));
  SLUICE_TRY(refuse_experts(f, type));
  if (type == "smollm") type = "llama";
  Result<ModelConfig> config = bad_request("");
  if (type == "gpt2")
    config = parse_gpt2(f);
  else if (type == "llama" || type == "mistral" || type == "phi3" || type == "qwen2" || type == "qwen3")
    config = parse_llama(f, type);
  else
    return f.refuse(
        "model_type",
        fmt::format("'{}' is not supported; llama, mistral, phi3, qwen2, qwen3, smollm, gpt2 are", type.substr(0, 40)));
  if (config) config->name = type;
  return config;
}

Result<ModelConfig> load_config(const std::string& model) {
  for (const std::string& name : preset_names())
    if (name == model) return preset_config(name);
  struct stat s {};
  if (::stat(model.c_str(), &s) != 0) {
    if (model.find('/') == std::string::npos && !model.ends_with(".json"))
      return bad_request("there is no " + model + ", and " + preset_config(model).error().message);
    return bad_request(model + ": no such file; name a preset, a config.json or a directory that holds one");
  }
  const std::string path = S_ISDIR(s.st_mode) ? model + "/config.json" : model;
  // A checkpoint says in its manifest of which model it is.
  if (S_ISDIR(s.st_mode) && ::access(path.c_str(), F_OK) != 0 &&
      ::access((model + "/" + manifest_name).c_str(), F_OK) == 0) {
    SLUICE_ASSIGN(const std::string text, checkpoint_model(model));
    return parse_hf_config(text, model + "/" + manifest_name);
  }
  if (S_ISDIR(s.st_mode) && ::stat(path.c_str(), &s) != 0 && errno == ENOENT)
    return bad_request(model + " holds no config.json; name a preset, a config.json or a directory that holds one");
  if (const auto weights = weights_instead_of_config(path)) return bad_request(path + " " + *weights);
  if (S_ISREG(s.st_mode) && static_cast<std::uint64_t>(s.st_size) > max_config_bytes)
    return bad_request(path + " has " + format_bytes(static_cast<std::uint64_t>(s.st_size)) +
                       ", which no model's config.json has; name a config.json or the directory that holds one");
  SLUICE_ASSIGN(const std::string text, read_file(path, max_config_bytes));
  return parse_hf_config(text, path);
}

std::string longer_positions(const ModelConfig& config, std::int64_t positions) {
  if (config.family == Family::gpt2)
    return fmt::format("they are weights of the model: give at most {}", config.max_positions);
  const double known = config.rope_scaling.original_max_positions;
  const auto original = known > 0 ? static_cast<std::int64_t>(known) : config.max_positions;
  return fmt::format(
      "a config.json with \"max_position_embeddings\": {} and \"rope_scaling\": {{\"rope_type\": \"yarn\", \"factor\": "
      "{}, "
      "\"original_max_position_embeddings\": {}}} extends them",
      positions, (positions + original - 1) / original, original);
}

}  // namespace sluice
