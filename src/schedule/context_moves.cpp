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

void ContextMoves::attend(UnitId u, int mb, const Operand& in, const Part& saved) {
  const Part mixed = kept(saved, saved_.mixed), attended = kept(saved, saved_.attended);
  const Part leaving = device(label(u, "qkv.leaving", mb), mixed.bytes);
  Op& projects = op(OpKind::qkv, u, mb);
  Emitter::touch(projects, in.part, in.role, Mode::read);
  Emitter::touch(projects, leaving, Role::leaving, Mode::write);
  if (saved_.projected.bytes > 0) Emitter::touch(projects, kept(saved, saved_.projected), Role::saved, Mode::write);
  exchange_parts(u, leaving, mixed, context_group, work_.shape.batch);
  Op& core = op(OpKind::core, u, mb);
  Emitter::touch(core, mixed, Role::mixed, Mode::read);
  Emitter::touch(core, attended, Role::attended, Mode::write);
  Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::write);
  exchange_parts(u, attended, kept(saved, saved_.returned), context_group, work_.shape.batch);
}

void ContextMoves::forward(UnitId u, int mb, const Operand& in, const Part& saved, const Operand& out) {
  const Part all = saved.valid() ? saved : device(label(u, "attended", mb), saved_.bytes);
  attend(u, mb, in, all);
  Op& ends = op(OpKind::out, u, mb);
  if (in.role == Role::x_in) Emitter::touch(ends, in.part, in.role, Mode::read);
  Emitter::touch(ends, kept(all, saved_.returned), Role::arrived, Mode::read);
  Emitter::touch(ends, out.part, out.role, Mode::write);
}

void ContextMoves::backward(UnitId u, int mb, const Operand& in, const Part& saved, const Part& d_out,
                            const Operand& d_in, const Part& gradient, Mode mode) {
  const bool accumulates = mode == Mode::read_write;
  const Part mixed = kept(saved, saved_.mixed), attended = kept(saved, saved_.attended);
  const Part leaving = device(label(u, "d_out.leaving", mb), attended.bytes),
             d_attended = device(label(u, "d_attended", mb), attended.bytes);
  Op& begins = op(OpKind::out_backward, u, mb);
  begins.accumulate = accumulates;
  Emitter::touch(begins, kept(saved, saved_.returned), Role::arrived, Mode::read);
  Emitter::touch(begins, d_out, Role::d_out, Mode::read);
  Emitter::touch(begins, leaving, Role::leaving, Mode::write);
  Emitter::touch(begins, gradient, Role::gradient, mode);
  exchange_parts(u, leaving, d_attended, context_group, work_.shape.batch);
  const Part d_mixed = device(label(u, "d_mixed", mb), mixed.bytes), d_qkv = device(label(u, "d_qkv", mb), mixed.bytes);
  Op& core = op(OpKind::core_backward, u, mb);
  Emitter::touch(core, mixed, Role::mixed, Mode::read);
  Emitter::touch(core, attended, Role::attended, Mode::read);
  Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::read);
  Emitter::touch(core, d_attended, Role::arrived, Mode::read);
  Emitter::touch(core, d_mixed, Role::leaving, Mode::write);
  exchange_parts(u, d_mixed, d_qkv, context_group, work_.shape.batch);
  Op& ends = op(OpKind::qkv_backward, u, mb);
  ends.accumulate = accumulates;
  Emitter::touch(ends, in.part, in.role, Mode::read);
  Emitter::touch(ends, d_qkv, Role::arrived, Mode::read);
  if (saved_.projected.bytes > 0) Emitter::touch(ends, kept(saved, saved_.projected), Role::saved, Mode::read);
  if (d_in.role == Role::d_in) Emitter::touch(ends, d_out, Role::d_out, Mode::read);
  Emitter::touch(ends, d_in.part, d_in.role, Mode::write);
  Emitter::touch(ends, gradient, Role::gradient, Mode::read_write);
}

}  // namespace sluice
