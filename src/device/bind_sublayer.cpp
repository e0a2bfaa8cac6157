#include "src/device/bind_sublayer.h"

namespace sluice {

SublayerArgs bind_sublayer(const ModelSpec& model, const SublayerOptions& options, const StepPlan& plan, const Op& op,
                           std::span<const Operand> operands, const StepParams& params) {
  SublayerArgs a;
  a.model = &model;
  a.unit = &model.units[static_cast<std::size_t>(op.unit)];
  a.shape = options.shape;
  a.dtype = options.dtype;
  a.accumulate = op.accumulate;
  a.loss_scale = params.loss_scale;
  a.words = options.words;
  a.leads = options.leads;
  a.chunk = op.chunk;
  a.slice = options.shape.slices > 1 ? op.micro_batch % options.shape.slices : options.slice;
  a.step = op.step;
  a.position0 = options.shape.in_blocks() ? 0 : options.slice * options.shape.sequence;
  if (plan.kind == PlanKind::decode) {
    a.shape = {1, params.tokens};
    a.position0 = params.position;
    a.kv_capacity = options.kv_capacity;
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
      case Role::core: a.core = o.data; break;
      case Role::leaving: a.leaving = o.data; break;
      case Role::arrived: a.arrived = o.data; break;
      case Role::mixed: a.mixed = o.data; break;
      case Role::attended: a.attended = o.data; break;
      case Role::lse: a.lse = reinterpret_cast<float*>(o.data); break;
      case Role::block: a.block = o.data; break;
      case Role::partial: a.partial = reinterpret_cast<float*>(o.data); break;
      case Role::deferred: a.deferred = o.data; break;
      case Role::normed: a.normed = o.data; break;
      case Role::sum: a.sum = reinterpret_cast<float*>(o.data); break;
      case Role::d_sum: a.d_sum = reinterpret_cast<float*>(o.data); break;
      case Role::vocabulary_part: a.vocabulary_parts = reinterpret_cast<kernels::VocabularyPart*>(o.data); break;
      case Role::d_out: a.d_out = o.data; break;
      case Role::d_in: a.d_in = o.data; break;
      case Role::workspace: a.workspace = {o.data, o.bytes}; break;
      case Role::tokens:
        a.tokens = TokenPlanes::at(reinterpret_cast<const std::int32_t*>(o.data), options.shape, options.documents);
        break;
      case Role::loss: a.loss = reinterpret_cast<double*>(o.data); break;
      case Role::logits: a.logits = reinterpret_cast<float*>(o.data); break;
      case Role::kv_cache: a.kv_cache = o.data; break;
      default: break;
    }
  }
  return a;
}

std::span<std::byte> gradient_padding(const SublayerArgs& args, const Op& op, std::span<const Operand> operands) {
  const std::uint64_t own_bytes = args.unit->numel * 4;
  for (const Operand& o : operands)
    if (o.role == Role::gradient && o.bytes > own_bytes && !op.accumulate)
      return {o.data + own_bytes, o.bytes - own_bytes};
  return {};
}

}  // namespace sluice
