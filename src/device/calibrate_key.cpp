#include <fmt/format.h>

#include "src/device/calibrate.h"
#include "src/model/kernel_sizes.h"

namespace sluice {

std::string cost_key(const Workload& w, Sublayer sublayer, OpKind kind) {
  const ModelConfig& c = w.model->config;
  static constexpr const char* sublayer_names[] = {"embed", "attention", "mlp", "head"};
  std::string key = fmt::format("{}.{} b{} s{} h{}", sublayer_names[static_cast<int>(sublayer)],
                                op_names[static_cast<std::size_t>(kind)], w.shape.batch, w.shape.sequence, c.hidden);
  switch (sublayer) {
    case Sublayer::embed: key += fmt::format(" v{}", c.vocabulary); break;
    case Sublayer::attention:
      key += fmt::format(" a{} kv{} d{} w{}{}{}", c.heads, c.kv_heads, c.head_dim, c.window, c.qkv_bias ? " bias" : "",
                         c.qk_norm ? " qknorm" : "");
      if (w.shape.context > 1) key += fmt::format(" cp{}{}", w.shape.context, w.shape.ring ? " ring" : "");
      if (w.shape.slices > 1) key += w.documents ? fmt::format(" slices{}", w.shape.slices) : " sliced";
      if (w.documents) key += fmt::format(" docs{}", w.document_length);
      break;
    case Sublayer::mlp: key += fmt::format(" f{}", c.ffn); break;
    case Sublayer::head:
      key += fmt::format(" v{}{}", c.vocabulary, c.tied ? " tied" : "");
      // Other rows are other multiplies.
      if (c.vocabulary % w.kernels->logits_multiple != 0) key += fmt::format(" of{}", w.kernels->logits_multiple);
      break;
  }
  if (c.split > 1) key += fmt::format(" of{}", c.split);
  return key + fmt::format(" {} {} {}", c.family == Family::llama ? "llama" : "gpt2",
                           w.device.empty() ? fmt::format("t{}", w.threads) : w.device, dtype_name(w.dtype));
}

}  // namespace sluice
