#include "src/schedule/context_moves.h"

#include <utility>

namespace sluice {

Op& ContextMoves::op(OpKind kind, UnitId u, int mb) {
  const bool back = goes_back_in_slices(kind);
  const SublayerCost& cost = ops_.cost(u);
  const Part space = device(label(u, "workspace"), back ? cost.backward_workspace_bytes : cost.forward_workspace_bytes);
  Op& op = ops_.compute(kind, u, mb);
  if (!is_core_of_slices(kind)) ops_.touch_parameters(op, u);
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

void ContextMoves::project(UnitId u, int mb, const Operand& in, const Part& saved, const Part& block,
                           const Part& leaving) {
  Op& projects = op(OpKind::qkv, u, mb);
  Emitter::touch(projects, in.part, in.role, Mode::read);
  if (block.valid()) {
    Emitter::touch(projects, kept(saved, saved_.mixed), Role::mixed, Mode::write);
    Emitter::touch(projects, block, Role::block, Mode::write);
  } else {
    Emitter::touch(projects, leaving, Role::leaving, Mode::write);
  }
  if (saved_.projected.bytes > 0) Emitter::touch(projects, kept(saved, saved_.projected), Role::saved, Mode::write);
}

void ContextMoves::attend(UnitId u, int mb, const Operand& in, const Part& saved) {
  if (!in_slices()) return attend_over_ranks(u, mb, in, saved);
  // The slice's own block is made again beside the rest, and need not come back where it was parked.
  Part& block = micro(u, mb).block;
  if (!block.valid()) block = device(label(u, "block", mb), block_bytes(dims_));
  project(u, mb, in, saved, block, {});
  attend_in_slices(u, mb, saved);
}

void ContextMoves::attend_over_ranks(UnitId u, int mb, const Operand& in, const Part& saved) {
  if (is_ring()) {
    project(u, mb, in, saved, kept(saved, saved_.block), {});
    return attend_in_ring(u, mb, saved);
  }
  const Part mixed = kept(saved, saved_.mixed), attended = kept(saved, saved_.attended);
  const Part leaving = device(label(u, "qkv.leaving", mb), mixed.bytes);
  project(u, mb, in, saved, {}, leaving);
  exchange_parts(u, leaving, mixed, context_group, work_.shape.batch);
  Op& core = op(OpKind::core, u, mb);
  Emitter::touch(core, mixed, Role::mixed, Mode::read);
  Emitter::touch(core, attended, Role::attended, Mode::write);
  Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::write);
  exchange_parts(u, attended, kept(saved, saved_.returned), context_group, work_.shape.batch);
}

void ContextMoves::attend_in_ring(UnitId u, int mb, const Part& saved) {
  const Part partial = device(label(u, "partial", mb), partial_bytes(dims_));
  Part block = kept(saved, saved_.block);
  for (int step = 0; step < steps(); ++step) {
    const Part next = next_block(u, mb, step, block);
    Op& core = step_op(OpKind::core, u, mb, step, saved, block, partial);
    Emitter::touch(core, kept(saved, saved_.lse), Role::lse, step == 0 ? Mode::write : Mode::read_write);
    if (step + 1 == steps()) Emitter::touch(core, kept(saved, saved_.attended), Role::attended, Mode::write);
    block = next;
  }
}

void ContextMoves::forward(UnitId u, int mb, const Operand& in, const Part& saved, const Operand& out, bool keeps) {
  const Part all = saved.valid() ? saved : device(label(u, "attended", mb), saved_.bytes);
  if (in_slices()) {
    micro(u, mb).block = device(label(u, "block", mb), block_bytes(dims_), Life::lasting);
    project(u, mb, in, all, micro(u, mb).block, {});
    attend_in_slices(u, mb, all);
  } else {
    attend_over_ranks(u, mb, in, all);
  }
  Op& ends = op(OpKind::out, u, mb);
  if (in.role == Role::x_in) Emitter::touch(ends, in.part, in.role, Mode::read);
  Emitter::touch(ends, all_heads(all), Role::arrived, Mode::read);
  Emitter::touch(ends, out.part, out.role, Mode::write);
  if (in_slices()) leave_blocks(u, mb, keeps && kind_ == PlanKind::train);
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
  const auto [d_partial, d_arrived] = is_ring()     ? core_backward_in_ring(u, mb, saved, d_heads)
                                      : in_slices() ? core_backward_in_slices(u, mb, saved, d_heads)
                                                    : core_backward(u, mb, saved, d_heads);
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
  const std::uint64_t bytes = block_gradient_bytes(dims_);
  const Part partial = device(label(u, "d_partial", mb), partial_bytes(dims_));
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

/// For this step and the next ones, as many as activations come ahead. None twice.
void ContextMoves::bring_blocks(UnitId u, int mb, int step, bool with_gradients) {
  const int ahead = schedule_.prefetch > 0 ? schedule_.activations_ahead : 0;
  for (int next = step; next < blocks_seen(mb) && next <= step + ahead; ++next) {
    const int of = mb - next;
    PerMicroBatch& m = micro(u, of);
    if (!m.block.valid()) m.block = bring(m.parked_block, label(u, "block", of), u, of, Life::brief);
    if (!with_gradients || m.d_block.valid() || !m.parked_d_block.part.valid()) continue;
    m.d_block = bring(m.parked_d_block, label(u, "d_block", of), u, of, Life::brief);
    m.parked_d_block = {};
  }
}

void ContextMoves::attend_in_slices(UnitId u, int mb, const Part& saved) {
  const Part partial = device(label(u, "partial", mb), partial_bytes(dims_));
  const int steps = blocks_seen(mb);
  for (int step = 0; step < steps; ++step) {
    bring_blocks(u, mb, step, false);
    PerMicroBatch& of = micro(u, mb - step);
    Op& core = step_op(step == 0 ? OpKind::core : OpKind::core_earlier, u, mb, step, saved, of.block, partial);
    Emitter::touch(core, kept(saved, saved_.lse), Role::lse, step == 0 ? Mode::write : Mode::read_write);
    if (step + 1 == steps) Emitter::touch(core, kept(saved, saved_.attended), Role::attended, Mode::write);
    if (of.parked_block.part.valid() && step > 0) of.block = Part{};
  }
}

/// Behind a slice's forward pass its block waits for later slices, and where the pass keeps what it makes for the way
/// back.
void ContextMoves::leave_blocks(UnitId u, int mb, bool keeps) {
  PerMicroBatch& m = micro(u, mb);
  const bool is_last = mb % slices() == slices() - 1;
  if (choice(u).blocks != Place::device && (keeps || !is_last)) {
    m.parked_block = park(m.block, choice(u).blocks, label(u, "block", mb), u, mb);
    m.block = Part{};
  }
  if (keeps || !is_last) return;
  for (int of = mb; of > mb - slices(); --of) {
    micro(u, of).block = Part{};
    micro(u, of).parked_block = {};
  }
}

/// Until an earlier slice's queries add to it.
void ContextMoves::leave_gradient(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  if (choice(u).blocks == Place::device) return;
  m.parked_d_block = park(m.d_block, choice(u).blocks, label(u, "d_block", mb), u, mb);
  m.d_block = Part{};
}

/// Slices come last to first, so that a block's gradient is whole behind its own slice's queries.
ContextMoves::Gradients ContextMoves::core_backward_in_slices(UnitId u, int mb, const Part& saved,
                                                              const Part& d_heads) {
  const Part partial = device(label(u, "d_partial", mb), partial_bytes(dims_));
  const Life life = choice(u).blocks == Place::device ? Life::lasting : Life::brief;
  for (int step = 0; step < blocks_seen(mb); ++step) {
    bring_blocks(u, mb, step, true);
    PerMicroBatch& of = micro(u, mb - step);
    const bool begins = !of.d_block.valid();
    if (begins) of.d_block = device(label(u, "d_block", mb - step), block_gradient_bytes(dims_), life);
    Op& core = step_op(step == 0 ? OpKind::core_backward : OpKind::core_earlier_backward, u, mb, step, saved, of.block,
                       partial);
    core.accumulate = !begins;
    Emitter::touch(core, kept(saved, saved_.attended), Role::attended, Mode::read);
    Emitter::touch(core, kept(saved, saved_.lse), Role::lse, Mode::read);
    Emitter::touch(core, d_heads, Role::arrived, Mode::read);
    Emitter::touch(core, of.d_block, Role::leaving, begins ? Mode::write : Mode::read_write);
    if (of.parked_block.part.valid()) of.block = Part{};
    if (step > 0) leave_gradient(u, mb - step);
  }
  PerMicroBatch& m = micro(u, mb);
  m.block = Part{};
  m.parked_block = {};
  return {partial, std::exchange(m.d_block, Part{})};
}

}  // namespace sluice
