// Token embedding, with GPT-2's learned positions.
#include "src/model/blocks.h"
#include "src/model/layers.h"
#include "src/model/layout.h"

namespace sluice {

template <class T>
void embed_forward(const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype);
  const T* table = weight<T>(args, "embed_tokens.weight").value;
  const T* places = nullptr;
  if (d.gpt2) {
    table = weight<T>(args, "wte.weight").value;
    places = weight<T>(args, "wpe.weight").value;
    SLUICE_CHECK(args.position0 + d.sequence <= args.model->config.max_positions, "position %lld",
                 static_cast<long long>(args.position0 + d.sequence));
  }
  kernels::embed_forward(args.tokens.inputs, d.tokens, token_positions(args), table, places, d.hidden,
                         reinterpret_cast<T*>(args.x_out));
}

template <class T>
void embed_backward(const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype);
  open_gradient(args);
  const std::vector<TensorSpec>& tensors = args.unit->tensors;
  float* d_table = args.gradient + tensors[0].offset;
  float* d_places = d.gpt2 ? args.gradient + tensors[1].offset : nullptr;
  kernels::embed_backward(args.tokens.inputs, d.tokens, token_positions(args), reinterpret_cast<const T*>(args.d_out),
                          d.hidden, d_table, d_places);
}

template void embed_forward<float>(const SublayerArgs&);
template void embed_forward<bf16>(const SublayerArgs&);
template void embed_backward<float>(const SublayerArgs&);
template void embed_backward<bf16>(const SublayerArgs&);

}  // namespace sluice
