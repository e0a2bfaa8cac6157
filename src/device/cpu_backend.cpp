#include "src/device/cpu_backend.h"

#include <cstring>

#include "kernels/cpu/gemm.h"

namespace sluice {

void CpuBackend::thread_started() { kernels::set_compute_threads(options_.threads); }

SublayerArgs CpuBackend::bind(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                              const StepParams& params) const {
  SublayerArgs a;
  a.model = &model_;
  a.unit = &model_.units[static_cast<std::size_t>(op.unit)];
  a.rope = &rope_;
  a.shape = options_.shape;
  a.dtype = options_.dtype;
  a.accumulate = op.accumulate;
  a.loss_scale = params.loss_scale;
  if (plan.kind == PlanKind::decode) {
    a.shape = {1, params.tokens};
    a.position0 = params.position;
    a.kv_capacity = options_.kv_capacity;
  }
  for (const Operand& o : operands) {
    switch (o.role) {
      case Role::parameters: a.parameters = o.data; break;
      case Role::tied_parameters: a.tied_parameters = o.data; break;
      case Role::gradient: a.gradient = reinterpret_cast<float*>(o.data); break;
      case Role::tied_gradient: a.tied_gradient = reinterpret_cast<float*>(o.data); break;
      case Role::x_in: a.x_in = o.data; break;
      case Role::x_out: a.x_out = o.data; break;
      case Role::saved: a.saved = o.data; break;
      case Role::d_out: a.d_out = o.data; break;
      case Role::d_in: a.d_in = o.data; break;
      case Role::workspace: a.workspace = {o.data, o.bytes}; break;
      case Role::tokens:
        a.tokens = TokenPlanes::at(reinterpret_cast<const std::int32_t*>(o.data), options_.shape, options_.documents);
        break;
      case Role::loss: a.loss = reinterpret_cast<double*>(o.data); break;
      case Role::logits: a.logits = reinterpret_cast<float*>(o.data); break;
      case Role::kv_cache: a.kv_cache = o.data; break;
      default: break;
    }
  }
  return a;
}

Status CpuBackend::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                       const StepParams& params) {
  const SublayerArgs args = bind(plan, op, operands, params);
  // The flat gradient is padded to whole shards: the padding is ours to clear.
  if (!op.accumulate) {
    for (const Operand& o : operands) {
      const std::uint64_t own_bytes = args.unit->numel * 4;
      if (o.role == Role::gradient && o.bytes > own_bytes) std::memset(o.data + own_bytes, 0, o.bytes - own_bytes);
    }
  }
  switch (op.kind) {
    case OpKind::forward:
    case OpKind::recompute: sublayer_forward(args); return success();
    case OpKind::backward: sublayer_backward(args); return success();
    case OpKind::forward_backward: head_forward_backward(args); return success();
    case OpKind::loss: head_loss(args); return success();
    case OpKind::logits: head_logits(args); return success();
    default: return fault(std::string("the CPU backend has no op ") + op_names[static_cast<std::size_t>(op.kind)]);
  }
}

}  // namespace sluice
