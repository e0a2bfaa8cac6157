// Token embedding, with GPT-2's learned positions.
#pragma once

#include "src/model/blocks.h"
#include "src/model/workspaces.h"

namespace sluice {

template <class T, class K>
void embed_forward(const K& device, const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype, device.sizes());
  const T* table = weight<T>(args, "embed_tokens.weight").value;
  const T* places = nullptr;
  if (d.gpt2) {
    table = weight<T>(args, "wte.weight").value;
    places = weight<T>(args, "wpe.weight").value;
    SLUICE_CHECK(args.position0 + d.sequence <= args.model->config.max_positions, "position %lld",
                 static_cast<long long>(args.position0 + d.sequence));
  }
  device.embed_forward(args.tokens.inputs, d.tokens, token_positions(args), table, places, d.hidden,
                       reinterpret_cast<T*>(args.x_out));
}

template <class T, class K>
void embed_backward(const K& device, const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype, device.sizes());
  open_gradient(device, args);
  const std::vector<TensorSpec>& tensors = args.unit->tensors;
  float* d_table = args.gradient + tensors[0].offset;
  float* d_places = d.gpt2 ? args.gradient + tensors[1].offset : nullptr;
  device.embed_backward(args.tokens.inputs, d.tokens, token_positions(args), reinterpret_cast<const T*>(args.d_out),
                        d.hidden, d_table, d_places);
}

}  // namespace sluice
