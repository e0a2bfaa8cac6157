// What each sublayer costs, from shapes alone.
#include <algorithm>

#include "src/model/model.h"
#include "src/model/sublayer.h"
#include "src/model/workspaces.h"

namespace sluice {
namespace {

/// Pairs of a query and a key that it sees, over all sequences of the micro-batch, each of so many tokens.
double visible_pairs(const Dims& d, std::int64_t tokens) {
  const double s = static_cast<double>(tokens);
  const double batch = static_cast<double>(d.batch);
  if (d.window == 0 || d.window >= tokens) return batch * s * (s + 1) / 2;
  const double w = static_cast<double>(d.window);
  return batch * (w * (w + 1) / 2 + (s - w) * w);
}

double matmul_flop(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
}

/// Forward: two matmuls over the scores; backward: five, one of them the scores again.
void attention_cost(const Dims& d, std::int64_t keys, SublayerCost* cost) {
  // Of slices of one rank in the mean.
  const double context = static_cast<double>(d.context), slices = static_cast<double>(d.slices);
  const double a_pair = 2.0 * static_cast<double>(d.q);
  const double scores = a_pair / context / slices * visible_pairs(d, d.whole);
  const double project = matmul_flop(d.tokens, d.hidden, d.qkv), out = matmul_flop(d.tokens, d.q, d.hidden);
  const AttentionSaved saved(Carver(nullptr), d, d.batch);
  cost->saved_bytes = saved.bytes;
  cost->core_bytes = saved.bytes - saved.core_at;
  std::ranges::copy(saved.values, cost->saved_values.begin());
  cost->forward_workspace_bytes = AttentionForwardSpace(Carver(nullptr), d, keys).bytes;
  cost->backward_workspace_bytes = AttentionBackwardSpace(Carver(nullptr), d).bytes;
  cost->recompute_flop = project + 2 * scores;
  cost->forward_flop = cost->recompute_flop + out;
  cost->backward_flop = 2 * (project + out) + 5 * scores;
  cost->deferred_bytes = AttentionDeferred(Carver(nullptr), d).bytes;
  cost->backward_input_workspace_bytes = cost->backward_workspace_bytes + unwanted_gradient_bytes(d);
  cost->backward_input_flop = project + out + 5 * scores;
  cost->qkv_flop = project;
  cost->core_flop = 2 * scores / (d.ring ? context : 1);  // of one step
  cost->out_flop = out;
  if (d.context == 1 && !d.in_blocks) return;
  if (d.slices > 1) {
    const double tokens = static_cast<double>(d.sequence);
    cost->core_flop = 2 * a_pair * visible_pairs(d, d.sequence);
    cost->core_earlier_flop = 2 * a_pair * static_cast<double>(d.batch) * tokens * tokens;
  }
  const ContextSaved kept(d);
  cost->saved_bytes = kept.bytes;
  cost->saved_values = kept.values();
  cost->core_bytes = 0;
  cost->forward_workspace_bytes = ContextSpace(Carver(nullptr), d, false).bytes;
  cost->backward_workspace_bytes = ContextSpace(Carver(nullptr), d, true).bytes;
}

void mlp_cost(const Dims& d, SublayerCost* cost) {
  const double down = matmul_flop(d.tokens, d.ffn, d.hidden);
  cost->saved_bytes = mlp_saved_bytes(d);
  cost->saved_values[0] = mlp_saved_values(d);
  cost->forward_workspace_bytes = MlpSpace(Carver(nullptr), d, MlpPass::forward).bytes;
  cost->backward_workspace_bytes = MlpSpace(Carver(nullptr), d, MlpPass::backward).bytes;
  cost->backward_again_workspace_bytes = MlpSpace(Carver(nullptr), d, MlpPass::backward_again).bytes;
  cost->recompute_flop = matmul_flop(d.tokens, d.hidden, d.pre);
  cost->forward_flop = cost->recompute_flop + down;
  cost->backward_flop = 2 * cost->forward_flop;
  cost->deferred_bytes = MlpDeferred(Carver(nullptr), d).bytes;
  cost->backward_input_workspace_bytes = cost->backward_workspace_bytes + unwanted_gradient_bytes(d);
  cost->backward_input_flop = cost->forward_flop;
}

void head_cost(const Dims& d, SublayerCost* cost) {
  cost->forward_workspace_bytes = HeadSpace(Carver(nullptr), d, false).bytes;
  cost->backward_workspace_bytes = HeadSpace(Carver(nullptr), d, true).bytes;
  cost->forward_flop = matmul_flop(d.tokens, d.hidden, d.vocabulary);
  cost->backward_flop = 2 * cost->forward_flop;
  cost->chunks = static_cast<int>((d.tokens + d.head_chunk - 1) / d.head_chunk);
  cost->logits_flop = matmul_flop(1, d.hidden, d.vocabulary);
}

}  // namespace

SublayerCost sublayer_cost(const ModelSpec& model, const UnitSpec& unit, BatchShape shape, Dtype dtype,
                           const KernelSizes& sizes, std::int64_t kv_capacity) {
  const Dims d(model, shape, dtype, sizes);
  SublayerCost cost;
  cost.boundary_bytes = d.element * static_cast<std::uint64_t>(d.slice * d.hidden);
  if (d.split > 1) cost.slice_workspace_bytes = SliceSpace(Carver(nullptr), d).bytes;
  switch (unit.kind) {
    case Sublayer::embed:
      if (d.split > 1) cost.forward_workspace_bytes = embed_part_bytes(d);
      break;
    case Sublayer::attention: attention_cost(d, std::max(shape.sequence, kv_capacity), &cost); break;
    case Sublayer::mlp: mlp_cost(d, &cost); break;
    case Sublayer::head: head_cost(d, &cost); break;
  }
  return cost;
}

double op_flop(const SublayerCost& cost, OpKind kind) {
  switch (kind) {
    case OpKind::forward:
    case OpKind::part_forward:
    case OpKind::loss: return cost.forward_flop;
    case OpKind::part_recompute:
    case OpKind::recompute: return cost.recompute_flop;
    case OpKind::recompute_qkv: return cost.qkv_flop;
    case OpKind::recompute_core: return cost.core_flop;
    case OpKind::part_backward:
    case OpKind::backward: return cost.backward_flop;
    case OpKind::backward_again: return cost.recompute_flop + cost.backward_flop;
    case OpKind::part_logits: return cost.forward_flop / cost.chunks;
    case OpKind::part_gradient: return cost.backward_flop / cost.chunks;
    case OpKind::qkv: return cost.qkv_flop;
    case OpKind::core: return cost.core_flop;
    case OpKind::core_earlier: return cost.core_earlier_flop;
    case OpKind::out: return cost.out_flop;
    case OpKind::out_backward: return 2 * cost.out_flop;
    case OpKind::core_backward: return 2.5 * cost.core_flop;
    case OpKind::core_earlier_backward: return 2.5 * cost.core_earlier_flop;
    case OpKind::qkv_backward: return 2 * cost.qkv_flop;
    case OpKind::backward_input: return cost.backward_input_flop;
    case OpKind::backward_weight: return cost.backward_flop - cost.backward_input_flop;
    case OpKind::forward_backward: return cost.forward_flop + cost.backward_flop;
    case OpKind::logits: return cost.logits_flop;
    default: return 0;
  }
}

std::uint64_t kv_cache_bytes(const ModelSpec& model, const UnitSpec& unit, std::int64_t capacity, Dtype dtype) {
  if (unit.kind != Sublayer::attention) return 0;
  const ModelConfig& c = model.config;
  return 2 * dtype_bytes(dtype) * static_cast<std::uint64_t>(capacity * c.kv_heads * c.head_dim);
}

}  // namespace sluice
