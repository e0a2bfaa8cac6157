#include "src/schedule/context_moves.h"

namespace sluice {

Op& ContextMoves::op(OpKind kind, UnitId u, int mb) {
  const bool back = kind == OpKind::out_backward || kind == OpKind::core_backward || kind == OpKind::qkv_backward;
  const SublayerCost& cost = ops_.cost(u);
  const Part space = device(label(u, "workspace"), back ? cost.backward_workspace_bytes : cost.forward_workspace_bytes);
  Op& op = ops_.compute(kind, u, mb);
  if (kind != OpKind::core && kind != OpKind::core_backward) ops_.touch_parameters(op, u);
  if (kind != OpKind::out && kind != OpKind::out_backward) ops_.touch_tokens(op, u, mb);
  Emitter::touch(op, space, Role::workspace, Mode::write);
  return op;
}

std::string ContextMoves::step_label(UnitId u, const char* what, int mb, int step) const {
  std::string name = label(u, what, mb);
  if (!name.empty()) name += ".s" + std::to_string(step);
  return name;
}

Op& ContextMoves::step_op(OpKind kind, UnitId u, int mb, int step, const Part& saved, const Part& block,
                          const Part& partial) {
  Op& core = op(kind, u, mb);
  core.step = step;
  Emitter::touch(core, kept(saved, saved_.mixed), Role::mixed, Mode::read);
  Emitter::touch(core, block, Role::block, Mode::read);
  Emitter::touch(core, partial, Role::partial, step == 0 ? Mode::write : Mode::read_write);
  return core;
}

/// The block that the next step works on, on its way while this step works. None behind the last step.
Part ContextMoves::next_block(UnitId u, int mb, int step, const Part& block) {
  if (step + 1 == steps()) return Part{};
  const Part next = device(step_label(u, "block", mb, step + 1), block.bytes);
  shift_part(u, block, next, context_group);
  return next;
}

void ContextMoves::attend(UnitId u, int mb, const Operand& in, const Part& saved) {
  const Part mixed = kept(saved, saved_.mixed);
  const Part leaving = is_ring() ? Part{} : device(label(u, "qkv.leaving", mb), mixed.bytes);
  Op& projects = op(OpKind::qkv, u, mb);
  Emitter::touch(projects, in.part, in.role, Mode::read);
  if (is_ring()) {
    Emitter::touch(projects, mixed, Role::mixed, Mode::write);
    Emitter::touch(projects, kept(saved, saved_.block), Role::block, Mode::write);
  } else {
    Emitter::touch(projects, leaving, Role::leaving, Mode::write);
  }
  if (saved_.projected.bytes > 0) Emitter::touch(projects, kept(saved, saved_.projected), Role::saved, Mode::write);
  if (is_ring()) return attend_in_ring(u, mb, saved);
  const Part attended = kept(saved, saved_.attended);
  exchange_parts(u, leaving, mixed, context_group, work_.shape.batch);
  Op& core = op(OpKind::core, u, mb);
  Emitter::touch(core, mixed, Role::mixed, Mode::read);
  Emitter::touch(core, attended, Role::attended, Mode::write);
  Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::write);
  exchange_parts(u, attended, kept(saved, saved_.returned), context_group, work_.shape.batch);
}

void ContextMoves::attend_in_ring(UnitId u, int mb, const Part& saved) {
  const Part partial = device(label(u, "partial", mb), ring_partial_bytes(dims_));
  Part block = kept(saved, saved_.block);
  for (int step = 0; step < steps(); ++step) {
    const Part next = next_block(u, mb, step, block);
    Op& core = step_op(OpKind::core, u, mb, step, saved, block, partial);
    Emitter::touch(core, kept(saved, saved_.lse), Role::lse, step == 0 ? Mode::write : Mode::read_write);
    if (step + 1 == steps()) Emitter::touch(core, kept(saved, saved_.attended), Role::attended, Mode::write);
    block = next;
  }
}

void ContextMoves::forward(UnitId u, int mb, const Operand& in, const Part& saved, const Operand& out) {
  const Part all = saved.valid() ? saved : device(label(u, "attended", mb), saved_.bytes);
  attend(u, mb, in, all);
  Op& ends = op(OpKind::out, u, mb);
  if (in.role == Role::x_in) Emitter::touch(ends, in.part, in.role, Mode::read);
  Emitter::touch(ends, all_heads(all), Role::arrived, Mode::read);
  Emitter::touch(ends, out.part, out.role, Mode::write);
}

void ContextMoves::backward(UnitId u, int mb, const Operand& in, const Part& saved, const Part& d_out,
                            const Operand& d_in, const Part& gradient, Mode mode) {
  const bool accumulates = mode == Mode::read_write;
  const Part d_heads = device(label(u, "d_heads", mb), all_heads(saved).bytes);
  Op& begins = op(OpKind::out_backward, u, mb);
  begins.accumulate = accumulates;
  Emitter::touch(begins, all_heads(saved), Role::arrived, Mode::read);
  Emitter::touch(begins, d_out, Role::d_out, Mode::read);
  Emitter::touch(begins, d_heads, Role::leaving, Mode::write);
  Emitter::touch(begins, gradient, Role::gradient, mode);
  const auto [d_partial, d_arrived] =
      is_ring() ? core_backward_in_ring(u, mb, saved, d_heads) : core_backward(u, mb, saved, d_heads);
  Op& ends = op(OpKind::qkv_backward, u, mb);
  ends.accumulate = accumulates;
  Emitter::touch(ends, in.part, in.role, Mode::read);
  Emitter::touch(ends, d_arrived, Role::arrived, Mode::read);
  if (d_partial.valid()) Emitter::touch(ends, d_partial, Role::partial, Mode::read);
  if (saved_.projected.bytes > 0) Emitter::touch(ends, kept(saved, saved_.projected), Role::saved, Mode::read);
  if (d_in.role == Role::d_in) Emitter::touch(ends, d_out, Role::d_out, Mode::read);
  Emitter::touch(ends, d_in.part, d_in.role, Mode::write);
  Emitter::touch(ends, gradient, Role::gradient, Mode::read_write);
}

ContextMoves::Gradients ContextMoves::core_backward(UnitId u, int mb, const Part& saved, const Part& d_heads) {
  const Part mixed = kept(saved, saved_.mixed), attended = kept(saved, saved_.attended);
  const Part d_attended = device(label(u, "d_attended", mb), attended.bytes);
  exchange_parts(u, d_heads, d_attended, context_group, work_.shape.batch);
  const Part d_mixed = device(label(u, "d_mixed", mb), mixed.bytes), d_qkv = device(label(u, "d_qkv", mb), mixed.bytes);
  Op& core = op(OpKind::core_backward, u, mb);
  Emitter::touch(core, mixed, Role::mixed, Mode::read);
  Emitter::touch(core, attended, Role::attended, Mode::read);
  Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::read);
  Emitter::touch(core, d_attended, Role::arrived, Mode::read);
  Emitter::touch(core, d_mixed, Role::leaving, Mode::write);
  exchange_parts(u, d_mixed, d_qkv, context_group, work_.shape.batch);
  return {{}, d_qkv};
}

/// A block's gradient travels while the next block is worked on, and meets what this rank has made for it behind that.
ContextMoves::Gradients ContextMoves::core_backward_in_ring(UnitId u, int mb, const Part& saved, const Part& d_heads) {
  const std::uint64_t bytes = ring_gradient_bytes(dims_);
  const Part partial = device(label(u, "d_partial", mb), ring_partial_bytes(dims_));
  Part block = kept(saved, saved_.block), arrived;
  for (int step = 0; step < steps(); ++step) {
    const Part next = next_block(u, mb, step, block);
    const Part made = device(step_label(u, "d_block", mb, step), bytes);
    Op& core = step_op(OpKind::core_backward, u, mb, step, saved, block, partial);
    Emitter::touch(core, kept(saved, saved_.attended), Role::attended, Mode::read);
    Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::read);
    Emitter::touch(core, d_heads, Role::arrived, Mode::read);
    Emitter::touch(core, made, Role::leaving, Mode::write);
    if (step > 0) {
      Op& adds = emit_.op(OpKind::accumulate, LaneKind::compute, u);
      adds.bytes = bytes;
      Emitter::touch(adds, arrived, Role::src, Mode::read);
      Emitter::touch(adds, made, Role::dst, Mode::read_write);
    }
    arrived = device(step_label(u, "d_block.arrived", mb, step), bytes);
    shift_part(u, made, arrived, context_group);
    block = next;
  }
  return {partial, arrived};
}

}  // namespace sluice
