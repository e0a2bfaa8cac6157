// From a configuration to units and the tensors in them.
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "sluice/round.h"
#include "src/model/model.h"

namespace sluice {
namespace {

constexpr std::uint64_t unit_alignment = 4096;

class ModelBuilder {
 public:
  explicit ModelBuilder(const ModelConfig& config) { model_.config = config; }

  ModelSpec build() {
    const bool gpt2 = model_.config.family == Family::gpt2;
    gpt2 ? gpt2_embed() : llama_embed();
    for (std::int64_t layer = 0; layer < model_.config.layers; ++layer) {
      open("L" + std::to_string(layer) + ".attention", Sublayer::attention, layer);
      gpt2 ? gpt2_attention(layer) : llama_attention(layer);
      open("L" + std::to_string(layer) + ".mlp", Sublayer::mlp, layer);
      gpt2 ? gpt2_mlp(layer) : llama_mlp(layer);
    }
    head();
    const std::uint64_t aligned = unit_alignment * static_cast<std::uint64_t>(model_.config.split);
    for (UnitSpec& unit : model_.units) unit.numel = std::max(round_up(unit.numel, aligned), aligned);
    return std::move(model_);
  }

 private:
  void open(std::string name, Sublayer kind, std::int64_t layer = -1) {
    model_.units.push_back({std::move(name), kind, layer, {}, 0});
  }

  /// Where sublayers are cut over ranks each has an equal part of a sum over a tensor, and of what lies up to the next
  /// one. What is multiplied with another as one matrix lies right behind that.
  std::uint64_t alignment(std::string_view name) const {
    const bool follows =
        name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight") || name.ends_with("up_proj.weight");
    return tensor_alignment_numel * static_cast<std::uint64_t>(follows ? 1 : model_.config.split);
  }

  TensorSpec& add(std::string name, std::vector<std::int64_t> shape) {
    UnitSpec& unit = model_.units.back();
    TensorSpec t;
    t.numel = 1;
    for (const std::int64_t extent : shape) t.numel *= static_cast<std::uint64_t>(extent);
    t.decay = shape.size() >= 2;
    t.stored = {name, shape, 0};
    t.offset = round_up(unit.numel, alignment(name));
    t.name = std::move(name);
    t.shape = std::move(shape);
    t.init_std = model_.config.init_std;
    t.index = tensors_++;
    unit.numel = t.offset + t.numel;
    model_.parameters += t.numel;
    unit.tensors.push_back(std::move(t));
    return unit.tensors.back();
  }
  void matrix(std::string name, std::int64_t rows, std::int64_t columns) { add(std::move(name), {rows, columns}); }
  // Projections that write into the residual stream start smaller (GPT-2), so that its variance does not grow with
  // depth.
  void residual_matrix(std::string name, std::int64_t rows, std::int64_t columns) {
    add(std::move(name), {rows, columns}).init_std /= std::sqrt(2.0 * static_cast<double>(model_.config.layers));
  }
  void ones(std::string name, std::int64_t n) { add(std::move(name), {n}).init = TensorSpec::Init::ones; }
  void zeros(std::string name, std::int64_t n) { add(std::move(name), {n}).init = TensorSpec::Init::zeros; }

  /// The unit's last `count` tensors are the rows of one in a file.
  void store_as_one(const std::string& name, std::size_t count) {
    const std::span<TensorSpec> parts = std::span(model_.units.back().tensors).last(count);
    StoredPlace place{name, {0, parts.front().shape[1]}, 0};
    for (const TensorSpec& t : parts) place.shape[0] += t.shape[0];
    for (TensorSpec& t : parts) {
      t.stored = place;
      place.first += t.numel;
    }
  }

  void llama_embed() {
    open("embed", Sublayer::embed);
    matrix("model.embed_tokens.weight", model_.config.vocabulary, model_.config.hidden);
  }

  // q, k, v lie one after the other, so that one matrix multiply makes all three.
  void llama_attention(std::int64_t layer) {
    const ModelConfig& c = model_.config;
    const std::string block = "model.layers." + std::to_string(layer) + ".", p = block + "self_attn.";
    const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    matrix(p + "q_proj.weight", q, c.hidden);
    matrix(p + "k_proj.weight", kv, c.hidden);
    matrix(p + "v_proj.weight", kv, c.hidden);
    if (c.fused) store_as_one(p + "qkv_proj.weight", 3);
    residual_matrix(p + "o_proj.weight", c.hidden, q);
    if (c.qkv_bias) {
      zeros(p + "q_proj.bias", q);
      zeros(p + "k_proj.bias", kv);
      zeros(p + "v_proj.bias", kv);
    }
    if (c.qk_norm) {
      ones(p + "q_norm.weight", c.head_dim);
      ones(p + "k_norm.weight", c.head_dim);
    }
    ones(block + "input_layernorm.weight", c.hidden);
  }

  void llama_mlp(std::int64_t layer) {
    const ModelConfig& c = model_.config;
    const std::string block = "model.layers." + std::to_string(layer) + ".";
    matrix(block + "mlp.gate_proj.weight", c.ffn, c.hidden);
    matrix(block + "mlp.up_proj.weight", c.ffn, c.hidden);
    if (c.fused) store_as_one(block + "mlp.gate_up_proj.weight", 2);
    residual_matrix(block + "mlp.down_proj.weight", c.hidden, c.ffn);
    ones(block + "post_attention_layernorm.weight", c.hidden);
  }

  void gpt2_embed() {
    open("embed", Sublayer::embed);
    matrix("transformer.wte.weight", model_.config.vocabulary, model_.config.hidden);
    matrix("transformer.wpe.weight", model_.config.max_positions, model_.config.hidden);
  }

  void gpt2_attention(std::int64_t layer) {
    const std::int64_t h = model_.config.hidden, q = model_.config.heads * model_.config.head_dim;
    const std::string block = "transformer.h." + std::to_string(layer) + ".";
    matrix(block + "attn.c_attn.weight", h, 3 * q);
    residual_matrix(block + "attn.c_proj.weight", q, h);
    zeros(block + "attn.c_attn.bias", 3 * q);
    zeros(block + "attn.c_proj.bias", h);
    ones(block + "ln_1.weight", h);
    zeros(block + "ln_1.bias", h);
  }

  void gpt2_mlp(std::int64_t layer) {
    const std::int64_t h = model_.config.hidden, f = model_.config.ffn;
    const std::string block = "transformer.h." + std::to_string(layer) + ".";
    matrix(block + "mlp.c_fc.weight", h, f);
    residual_matrix(block + "mlp.c_proj.weight", f, h);
    zeros(block + "mlp.c_fc.bias", f);
    zeros(block + "mlp.c_proj.bias", h);
    ones(block + "ln_2.weight", h);
    zeros(block + "ln_2.bias", h);
  }

  void head() {
    const ModelConfig& c = model_.config;
    open("head", Sublayer::head);
    if (!c.tied) matrix("lm_head.weight", c.vocabulary, c.hidden);
    if (c.family == Family::gpt2) {
      ones("transformer.ln_f.weight", c.hidden);
      zeros("transformer.ln_f.bias", c.hidden);
    } else {
      ones("model.norm.weight", c.hidden);
    }
  }

  ModelSpec model_;
  std::uint32_t tensors_ = 0;
};

}  // namespace

ModelSpec build_model(const ModelConfig& config) { return ModelBuilder(config).build(); }

const TensorSpec* UnitSpec::tensor(std::string_view suffix) const {
  for (const TensorSpec& t : tensors)
    if (t.name.ends_with(suffix)) return &t;
  return nullptr;
}

}  // namespace sluice
