// Token embedding, with GPT-2's learned positions.
#include "src/model/blocks.h"
#include "src/model/layers.h"
#include "src/model/layout.h"

namespace sluice {

// Tokens come in rows of sequence + 1, of which the last is only a target: sequences are gathered one by one.
template <class T>
void embed_forward(const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype);
  const T* table = weight<T>(args, "embed_tokens.weight").value;
  const T* positions = nullptr;
  if (d.gpt2) {
    table = weight<T>(args, "wte.weight").value;
    positions = weight<T>(args, "wpe.weight").value;
    SLUICE_CHECK(args.position0 + d.sequence <= args.model->config.max_positions, "position %lld",
                 static_cast<long long>(args.position0 + d.sequence));
  }
  T* out = reinterpret_cast<T*>(args.x_out);
  for (std::int64_t b = 0; b < d.batch; ++b)
    kernels::embed_forward(args.tokens + b * (d.sequence + 1), d.sequence, d.sequence, args.position0, table, positions,
                           d.hidden, out + b * d.sequence * d.hidden);
}

template <class T>
void embed_backward(const SublayerArgs& args) {
  const Dims d(*args.model, args.shape, args.dtype);
  open_gradient(args);
  const std::vector<TensorSpec>& tensors = args.unit->tensors;
  float* d_table = args.gradient + tensors[0].offset;
  float* d_positions = d.gpt2 ? args.gradient + tensors[1].offset : nullptr;
  const T* d_out = reinterpret_cast<const T*>(args.d_out);
  for (std::int64_t b = 0; b < d.batch; ++b)
    kernels::embed_backward(args.tokens + b * (d.sequence + 1), d.sequence, d.sequence,
                            d_out + b * d.sequence * d.hidden, d.hidden, d_table, d_positions);
}

template void embed_forward<float>(const SublayerArgs&);
template void embed_forward<bf16>(const SublayerArgs&);
template void embed_backward<float>(const SublayerArgs&);
template void embed_backward<bf16>(const SublayerArgs&);

}  // namespace sluice
