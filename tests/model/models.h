// Small models that together use every part of the sublayers.
#pragma once

#include <string>
#include <vector>

#include "src/model/model.h"

namespace sluice::test {

inline ModelConfig small_llama(const std::string& name) {
  ModelConfig c;
  c.name = name;
  c.vocabulary = 96;
  c.hidden = 32;
  c.layers = 1;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.ffn = 48;
  c.max_positions = 1024;
  c.init_std = 0.15;
  return c;
}

/// GQA, tied, biases, norms of heads with heads wider than hidden, a window, GPT-2, and GPT-2 with gaps between its
/// tensors. What Phi-3 differs in concerns files alone.
inline std::vector<ModelConfig> small_models() {
  std::vector<ModelConfig> all(6, small_llama("gqa"));
  all[1].name = "tied";
  all[1].tied = true;
  all[2].name = "bias";
  all[2].qkv_bias = true;
  all[3].name = "qk_norm";
  all[3].qk_norm = true;
  all[3].head_dim = 16;
  all[4].name = "window";
  all[4].window = 5;
  all[5].name = "gpt2";
  all[5].family = Family::gpt2;
  all[5].kv_heads = 4;
  all[5].ffn = 128;
  all[5].tied = true;
  all.push_back(all[5]);
  all[6].name = "gpt2_odd";
  all[6].vocabulary = 97;
  all[6].hidden = 36;
  all[6].heads = all[6].kv_heads = 3;
  all[6].head_dim = 12;
  all[6].ffn = 90;
  return all;
}

inline std::string model_name(const auto& model) { return model.param.name; }

}  // namespace sluice::test
