#include "src/schedule/parameter_moves.h"

#include "sluice/status.h"

namespace sluice {

void ParameterMoves::open_parameters(UnitId u) {
  PerUnit& s = unit(u);
  s.open = s.resident.valid() ? s.resident : device(label(u, "parameter.open"), work_.full_numel(u) * element_bytes());
}

void ParameterMoves::fetch_tile(const TileRef& t, bool retain) {
  const Part host = bring_home_tile(t, StateKind::parameter);
  if (retain) tile(t)[StateKind::parameter] = host;
  emit_.move(OpKind::copy, LaneKind::h2d, t.unit, host, own_tile(unit(t.unit).open, t), t.index);
}

void ParameterMoves::gather(UnitId u) {
  if (work_.shards() == 1) return;
  // After an update in the backward pass only the resident copy is there.
  gather_parts(u, unit(u).open.valid() ? unit(u).open : unit(u).resident, sharding_group);
}

/// The others' parts have no contents yet: they are written only.
void ParameterMoves::gather_parts(UnitId u, const Part& whole, std::int32_t group) {
  const Part own = own_part(whole, group);
  const std::uint64_t before = own.offset - whole.offset, after = before + own.bytes;
  const auto each_other = [&](const Part& of, auto visit) {
    if (before > 0) visit(of.slice(0, before));
    if (after < of.bytes) visit(of.slice(after, of.bytes - after));
  };
  Part met = whole;
  if (work_.meets_in_host) {
    met = stage(label(u, "gathered"), whole.bytes);
    emit_.move(OpKind::copy, LaneKind::d2h, u, own, own_part(met, group));
  }
  Op& op = emit_.collective(OpKind::all_gather, group, u);
  op.bytes = whole.bytes - own.bytes;
  Emitter::touch(op, own_part(met, group), Role::dst, Mode::read);
  each_other(met, [&](const Part& part) { Emitter::touch(op, part, Role::dst, Mode::write); });
  if (!work_.meets_in_host) return;
  Op& down = emit_.op(OpKind::copy, LaneKind::h2d, u);
  std::vector<Part> from;
  each_other(met, [&](const Part& part) { from.push_back(part); });
  each_other(whole, [&, i = std::size_t{0}](const Part& part) mutable { Emitter::move_also(down, from[i++], part); });
}

void ParameterMoves::keep_second_copy(UnitId u) {
  const Part own = own_part(unit(u).open, close_group);
  unit(u).second_copy = emit_.buffer(label(u, "parameter.second"), Tier::host, own.bytes, Life::lasting);
  emit_.move(OpKind::copy, LaneKind::d2h, u, own, unit(u).second_copy);
}

void ParameterMoves::fetch_second_copy(UnitId u) {
  const Part& open = unit(u).open;
  emit_.move(OpKind::copy, LaneKind::h2d, u, unit(u).second_copy, own_part(open, close_group));
  if (work_.close_ranks() > 1) gather_parts(u, open, close_group);
}

void ParameterMoves::send_tied() {
  // The matrix is what the unit begins with: the copy serves as the unit does.
  SLUICE_CHECK(spec(0).tensors.front().offset == 0, "%s", spec(0).tensors.front().name.c_str());
  send(tied_group(), stages_.stage_of(head_unit()), unit(0).open.slice(0, tied_bytes(element_bytes())),
       label(0, "tied"), 0);
}

void ParameterMoves::receive_tied() {
  arrived_tied_ = receive(tied_group(), stages_.stage_of(0), tied_bytes(element_bytes()), label(0, "tied"), 0);
}

void ParameterMoves::land_tied() { parts_.tied = landed(arrived_tied_, label(0, "tied"), head_unit()); }

void ParameterMoves::close_parameters(UnitId u) { unit(u).open = Part{}; }

}  // namespace sluice
