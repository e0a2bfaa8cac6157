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

/// Of the rank's words, other tokens are padding to it; positions are the first rank's.
template <class T, class K>
void embed_part(const K& device, OpKind op, const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype, device.sizes());
  if (op == OpKind::part_backward) open_gradient(device, args);
  const std::vector<TensorSpec>& tensors = args.unit->tensors;
  const bool has_places = d.gpt2 && args.leads;
  const T* parameters = reinterpret_cast<const T*>(args.parameters);
  if (op == OpKind::part_backward) {
    device.embed_backward(args.tokens.inputs, d.tokens, token_positions(args), reinterpret_cast<const T*>(args.d_out),
                          d.hidden, args.gradient + tensors[0].offset,
                          has_places ? args.gradient + tensors[1].offset : nullptr);
    return;
  }
  SLUICE_CHECK(embed_part_bytes(d) <= args.workspace.size(), "workspace of %zu bytes", args.workspace.size());
  T* rows = reinterpret_cast<T*>(args.workspace.data());
  for (std::int64_t t = 0; t < d.tokens; t += d.mlp_chunk) {
    const std::int64_t count = std::min(d.mlp_chunk, d.tokens - t);
    kernels::Positions positions = token_positions(args, t);
    if (positions.each == nullptr) positions.first += t % d.sequence;
    device.embed_forward(args.tokens.inputs + t, count, positions, parameters + tensors[0].offset,
                         has_places ? parameters + tensors[1].offset : nullptr, d.hidden, rows);
    device.widen(static_cast<const T*>(rows), args.sum + t * d.hidden, count * d.hidden);
  }
}

}  // namespace sluice
