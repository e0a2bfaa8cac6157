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
  const Part& whole = unit(u).open.valid() ? unit(u).open : unit(u).resident;
  if (work_.gathers == RankGathers::exact || kind_ != PlanKind::train) return gather_parts(u, whole, sharding_group);
  const auto numel = static_cast<std::int64_t>(work_.shard_numel(u));
  const Part packed = device(label(u, "parameter.packed"), quantized_bytes(numel, gathered_blocks) * work_.shards());
  quantize(OpKind::quantize, u, own_part(whole, sharding_group), own_part(packed, sharding_group), numel, 1,
           gathered_blocks);
  gather_parts(u, packed, sharding_group);
  // Its own part too, so that all compute with the same.
  quantize(OpKind::dequantize, u, packed, whole, numel, work_.shards(), gathered_blocks);
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
       label(0, "tied"), 0, -1, unit(0).open);
}

void ParameterMoves::receive_tied() {
  arrived_tied_ = receive(tied_group(), stages_.stage_of(0), tied_bytes(element_bytes()), label(0, "tied"), 0);
}

void ParameterMoves::land_tied() { parts_.tied = landed(arrived_tied_, label(0, "tied"), head_unit()); }

void ParameterMoves::close_parameters(UnitId u) { unit(u).open = Part{}; }

}  // namespace sluice
