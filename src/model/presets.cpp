// The shapes that the command knows by name.
#include <array>
#include <string_view>

#include "sluice/suggest.h"
#include "src/model/model.h"

namespace sluice {
namespace {

struct LlamaShape {
  std::string_view name;
  std::int64_t vocabulary, hidden, layers, heads, kv_heads, ffn, max_positions;
  double rope_theta;
};

// 7b, 13b, 70b: Llama 2 (arXiv 2307.09288). 8b: Llama 3 (arXiv 2407.21783). 1b: TinyLlama (arXiv 2401.02385).
// tiny and 25m read bytes. 3b has Llama 2's proportions at 3.5 billion parameters.
constexpr std::array llama_shapes{
    LlamaShape{"llama-tiny", 256, 128, 4, 4, 2, 352, 2048, 10000},
    LlamaShape{"llama-25m", 256, 512, 8, 8, 8, 1344, 2048, 10000},
    LlamaShape{"llama-125m", 32000, 768, 12, 12, 12, 2048, 2048, 10000},
    LlamaShape{"llama-1b", 32000, 2048, 22, 32, 4, 5632, 2048, 10000},
    LlamaShape{"llama-3b", 32000, 3072, 28, 24, 24, 8704, 4096, 10000},
    LlamaShape{"llama-7b", 32000, 4096, 32, 32, 32, 11008, 4096, 10000},
    LlamaShape{"llama-8b", 128256, 4096, 32, 32, 8, 14336, 8192, 500000},
    LlamaShape{"llama-13b", 32000, 5120, 40, 40, 40, 13824, 4096, 10000},
    LlamaShape{"llama-70b", 32000, 8192, 80, 64, 8, 28672, 4096, 10000},
};

struct Gpt2Shape {
  std::string_view name;
  std::int64_t hidden, layers, heads;
};
constexpr std::array gpt2_shapes{Gpt2Shape{"gpt2-124m", 768, 12, 12}, Gpt2Shape{"gpt2-1.5b", 1600, 48, 25}};

ModelConfig llama(const LlamaShape& s) {
  ModelConfig c;
  c.family = Family::llama;
  c.name = s.name;
  c.vocabulary = s.vocabulary;
  c.hidden = s.hidden;
  c.layers = s.layers;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.hidden / s.heads;
  c.ffn = s.ffn;
  c.max_positions = s.max_positions;
  c.rope_theta = s.rope_theta;
  return c;
}

ModelConfig gpt2(const Gpt2Shape& s) {
  ModelConfig c;
  c.family = Family::gpt2;
  c.name = s.name;
  c.vocabulary = 50257;
  c.hidden = s.hidden;
  c.layers = s.layers;
  c.heads = c.kv_heads = s.heads;
  c.head_dim = s.hidden / s.heads;
  c.ffn = 4 * s.hidden;
  c.max_positions = 1024;
  c.tied = true;
  return c;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  names.reserve(llama_shapes.size() + gpt2_shapes.size());
  for (const LlamaShape& s : llama_shapes) names.emplace_back(s.name);
  for (const Gpt2Shape& s : gpt2_shapes) names.emplace_back(s.name);
  return names;
}

Result<ModelConfig> preset_config(const std::string& name) {
  for (const LlamaShape& s : llama_shapes)
    if (s.name == name) return llama(s);
  for (const Gpt2Shape& s : gpt2_shapes)
    if (s.name == name) return gpt2(s);
  std::string known;
  for (const std::string& n : preset_names()) known += (known.empty() ? "" : ", ") + n;
  return bad_request("no preset is called '" + name + "'; they are " + known + did_you_mean(name, preset_names()));
}

}  // namespace sluice
