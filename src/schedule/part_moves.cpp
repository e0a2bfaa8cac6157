#include "src/schedule/part_moves.h"

#include <algorithm>
#include <utility>

namespace sluice {

std::uint64_t PartMoves::whole_bytes() const {
  return element_bytes() * static_cast<std::uint64_t>(work_.shape.tokens() * work_.model->config.hidden);
}
std::uint64_t PartMoves::sum_bytes() const { return whole_bytes() / element_bytes() * sizeof(float); }

Part PartMoves::workspace(Op& op, UnitId u, std::uint64_t bytes) {
  if (bytes == 0) return {};
  const Part space = device(label(u, "workspace"), bytes);
  Emitter::touch(op, space, Role::workspace, Mode::write);
  return space;
}

/// Of all tokens: each rank's slice in its place, and then the others'.
Part PartMoves::normed(UnitId u, int mb) {
  const Part whole = device(label(u, "normed", mb), whole_bytes());
  Op& op = ops_.compute(OpKind::enter, u, mb);
  ops_.touch_parameters(op, u);
  Emitter::touch(op, micro(u, mb).x, Role::x_in, Mode::read);
  Emitter::touch(op, own_part(whole, tensor_group), Role::normed, Mode::write);
  workspace(op, u, ops_.cost(u).slice_workspace_bytes);
  gather_parts(u, whole, tensor_group);
  return whole;
}

void PartMoves::forward(UnitId u, int mb, const Part& out, bool keeps) {
  const Part before = u > 0 ? normed(u, mb) : Part{};
  const Part whole = device(label(u, "sum", mb), sum_bytes());
  if (context_.has_ops_of(u)) {
    context_.forward(u, mb, {before, Role::normed}, micro(u, mb).saved, {whole, Role::sum}, keeps);
  } else {
    Op& op = ops_.compute(OpKind::part_forward, u, mb);
    ops_.touch_parameters(op, u);
    ops_.touch_tokens(op, u, mb);
    if (u > 0) Emitter::touch(op, before, Role::normed, Mode::read);
    Emitter::touch(op, whole, Role::sum, Mode::write);
    ops_.touch_saved(op, u, mb, Mode::write);
    workspace(op, u, ops_.cost(u).forward_workspace_bytes);
  }
  const Part sum = reduced_part(u, whole, label(u, "sum.slice", mb), tensor_group);
  Op& op = ops_.compute(OpKind::leave, u, mb);
  ops_.touch_parameters(op, u);
  if (u > 0) Emitter::touch(op, micro(u, mb).x, Role::x_in, Mode::read);
  Emitter::touch(op, sum, Role::sum, Mode::read);
  Emitter::touch(op, out, Role::x_out, Mode::write);
}

void PartMoves::enter_again(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  m.normed = normed(u, mb);
}

void PartMoves::backward(UnitId u, int mb) {
  PerMicroBatch& m = micro(u, mb);
  const Part d_out = std::exchange(micro(u + 1, mb).d, Part{});
  if (u > 0 && !m.normed.valid()) m.normed = normed(u, mb);
  const Part d_whole = device(label(u, "d_out", mb), whole_bytes());
  Op& exposes = ops_.compute(OpKind::expose, u, mb);
  Emitter::touch(exposes, d_out, Role::d_out, Mode::read);
  Emitter::touch(exposes, own_part(d_whole, tensor_group), Role::d_in, Mode::write);
  gather_parts(u, d_whole, tensor_group);
  const Part d_sum = u > 0 ? device(label(u, "d_sum", mb), sum_bytes()) : Part{};
  const Mode mode = gradients_.open_lot(u, work_.turn_back(mb));
  if (context_.has_ops_of(u)) {
    context_.backward(u, mb, {m.normed, Role::normed}, m.saved, d_whole, {d_sum, Role::d_sum}, unit(u).gradients.back(),
                      mode);
  } else {
    Op& op = ops_.compute(OpKind::part_backward, u, mb);
    op.accumulate = mode == Mode::read_write;
    if (u > 0) ops_.touch_parameters(op, u);
    ops_.touch_tokens(op, u, mb);
    if (u > 0) Emitter::touch(op, m.normed, Role::normed, Mode::read);
    ops_.touch_saved(op, u, mb, Mode::read);
    Emitter::touch(op, d_whole, Role::d_out, Mode::read);
    if (u > 0) Emitter::touch(op, d_sum, Role::d_sum, Mode::write);
    Emitter::touch(op, unit(u).gradients.back(), Role::gradient, mode);
    workspace(op, u, ops_.cost(u).backward_workspace_bytes);
  }
  if (u > 0) enter_backward(u, mb, reduced_part(u, d_sum, label(u, "d_sum.slice", mb), tensor_group), d_out);
  m.x = m.saved = m.core = m.normed = Part{};
  m.parked_x = {};
  gradients_.close_lot(u, work_.turn_back(mb));
}

void PartMoves::enter_backward(UnitId u, int mb, const Part& d_sum, const Part& d_out) {
  PerMicroBatch& m = micro(u, mb);
  m.d = device(label(u, "d", mb), ops_.cost(u).boundary_bytes, Life::lasting);
  Op& op = ops_.compute(OpKind::enter_backward, u, mb);
  op.accumulate = true;
  ops_.touch_parameters(op, u);
  Emitter::touch(op, m.x, Role::x_in, Mode::read);
  Emitter::touch(op, d_sum, Role::d_sum, Mode::read);
  if (d_out.valid()) Emitter::touch(op, d_out, Role::d_out, Mode::read);
  Emitter::touch(op, m.d, Role::d_in, Mode::write);
  Emitter::touch(op, unit(u).gradients.back(), Role::gradient, Mode::read_write);
  workspace(op, u, ops_.cost(u).slice_workspace_bytes);
}

void PartMoves::head(int mb) {
  const UnitId u = head_unit();
  const Part before = normed(u, mb), d_sum = device(label(u, "d_sum", mb), sum_bytes());
  const Mode mode = gradients_.open_lot(u, mb);
  const Part tied = gradients_.has_tied_gradient() ? gradients_.tied_gradient(work_.lot_sums().lot_of(mb)) : Part{};
  const Part loss = parts_.losses.slice(8 * static_cast<std::uint64_t>(mb), 8);
  for (int chunk = 0; chunk < ops_.cost(u).chunks; ++chunk) {
    const auto [logits, met] = logits_of(u, mb, chunk, before);
    Op& op = ops_.compute(OpKind::part_gradient, u, mb);
    const Mode meets = chunk > 0 ? Mode::read_write : mode;
    op.chunk = chunk;
    op.accumulate = mode == Mode::read_write;
    ops_.touch_parameters(op, u);
    ops_.touch_tokens(op, u, mb);
    touch_chunk(op, before, chunk);
    Emitter::touch(op, logits, Role::logits, Mode::read_write);
    Emitter::touch(op, met, Role::vocabulary_part, Mode::read);
    Emitter::touch(op, of_chunk(d_sum, chunk, sizeof(float)), Role::d_sum, Mode::write);
    Emitter::touch(op, unit(u).gradients.back(), Role::gradient, meets);
    if (tied.valid()) Emitter::touch(op, tied, Role::tied_gradient, meets);
    Emitter::touch(op, loss, Role::loss, chunk > 0 ? Mode::read_write : Mode::write);
    workspace(op, u, ops_.cost(u).backward_workspace_bytes);
  }
  enter_backward(u, mb, reduced_part(u, d_sum, label(u, "d_sum.slice", mb), tensor_group), {});
  micro(u, mb).x = Part{};
  micro(u, mb).parked_x = {};
  gradients_.close_lot(u, mb);
}

void PartMoves::evaluate_head(int mb) {
  const UnitId u = head_unit();
  const Part before = normed(u, mb), loss = parts_.losses.slice(8 * static_cast<std::uint64_t>(mb), 8);
  for (int chunk = 0; chunk < ops_.cost(u).chunks; ++chunk) {
    const auto [logits, met] = logits_of(u, mb, chunk, before);
    Op& op = ops_.compute(OpKind::part_loss, u, mb);
    op.chunk = chunk;
    ops_.touch_tokens(op, u, mb);
    Emitter::touch(op, met, Role::vocabulary_part, Mode::read);
    Emitter::touch(op, loss, Role::loss, chunk > 0 ? Mode::read_write : Mode::write);
    workspace(op, u, ops_.cost(u).forward_workspace_bytes);
  }
  micro(u, mb).x = Part{};
}

/// Logits of a chunk, and what all ranks have to say of theirs.
std::pair<Part, Part> PartMoves::logits_of(UnitId u, int mb, int chunk, const Part& before) {
  const Part logits = device(label(u, "logits", mb), logits_bytes(dims_)),
             met = device(label(u, "vocabulary_parts", mb), vocabulary_part_bytes(dims_) * work_.tensor_ranks());
  Op& op = ops_.compute(OpKind::part_logits, u, mb);
  op.chunk = chunk;
  ops_.touch_parameters(op, u);
  ops_.touch_tokens(op, u, mb);
  touch_chunk(op, before, chunk);
  Emitter::touch(op, logits, Role::logits, Mode::write);
  Emitter::touch(op, own_part(met, tensor_group), Role::vocabulary_part, Mode::write);
  workspace(op, u, ops_.cost(u).forward_workspace_bytes);
  gather_parts(u, met, tensor_group);
  return {logits, met};
}

/// Whoever reads any of what was gathered waits for all of it, on all ranks alike.
void PartMoves::touch_chunk(Op& op, const Part& normed, int chunk) const {
  Emitter::touch(op, of_chunk(normed, chunk, element_bytes()), Role::normed, Mode::read);
  Emitter::touch(op, normed, Role::src, Mode::read);
}

Part PartMoves::of_chunk(const Part& whole, int chunk, std::uint64_t bytes_per_element) const {
  const std::uint64_t row = bytes_per_element * static_cast<std::uint64_t>(dims_.hidden),
                      first = static_cast<std::uint64_t>(chunk * dims_.head_chunk);
  return whole.slice(row * first, row * std::min<std::uint64_t>(static_cast<std::uint64_t>(dims_.head_chunk),
                                                                static_cast<std::uint64_t>(dims_.tokens) - first));
}

}  // namespace sluice
