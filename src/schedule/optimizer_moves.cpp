#include "src/schedule/optimizer_moves.h"

namespace sluice {

void OptimizerMoves::read_tile(const TileRef& t) {
  Tile& w = tile(t);
  // With updates in the backward pass the tile that was fetched for it is still in host memory; only the embedding,
  // whose backward needs no parameters, and resident units have none.
  const bool retained = kind_ == PlanKind::train && !updates_ahead(t.unit) && t.unit != 0 && !choice(t.unit).resident &&
                        !unit(t.unit).fetched_before;
  for (const StateKind k : home_states) {
    if (!has_state(k) || (k == StateKind::parameter && retained)) continue;
    // What is updated in the resident parameters only comes up.
    const bool comes_up = k == StateKind::parameter && choice(t.unit).resident && choice(t.unit).update_on_device;
    w[k] = comes_up ? host_tile(t, k) : bring_home_tile(t, k);
  }
  if (!updates_ahead(t.unit)) return;
  const Part wait = tile_of(unit(t.unit).gradient_wait, t, gradient_bytes());
  Part& gradient = w[StateKind::gradient];
  const Tier tier = emit_.at(wait).tier;
  if (tier == Tier::host) {
    gradient = wait;
  } else if (tier == Tier::device && choice(t.unit).update_on_device) {
    device_tile(t)[StateKind::gradient] = wait;
  } else {
    gradient = stage(tile_label(t, StateKind::gradient), wait.bytes);
    const bool is_read = tier == Tier::nvme;
    emit_.move(is_read ? OpKind::read : OpKind::copy, is_read ? LaneKind::nvme_read : LaneKind::d2h, t.unit, wait,
               gradient, t.index);
  }
}

bool OptimizerMoves::can_load(const TileRef& t) {
  const UnitChoice& c = choice(t.unit);
  if (!c.update_on_device || c.resident) return true;
  const bool into_open = kind_ == PlanKind::train && updates_ahead(t.unit);  // what the next pass computes with
  return (into_open ? unit(t.unit).open : tile(t)[StateKind::parameter]).valid();
}

void OptimizerMoves::load_tile(const TileRef& t) {
  if (!choice(t.unit).update_on_device) return;
  const PerUnit& s = unit(t.unit);
  // In the backward pass open parameters are those of before the update.
  const Part& whole = s.resident.valid() || !updates_ahead(t.unit) ? s.resident : s.open;
  Tile &host = tile(t), &to = device_tile(t);
  Op& op = emit_.op(OpKind::copy, LaneKind::h2d, t.unit);
  op.tile = t.index;
  if (whole.valid()) to[StateKind::parameter] = own_tile(whole, t);
  for (std::size_t i = 0; i < state_names.size(); ++i) {
    const auto k = static_cast<StateKind>(i);
    // In the backward pass the gradient is on the device already.
    if (!host[k].valid() || (k == StateKind::parameter && choice(t.unit).resident)) continue;
    if (!to[k].valid()) to[k] = device(tile_label(t, k) + ".device", host[k].bytes);
    Emitter::move_also(op, host[k], to[k]);
  }
}

void OptimizerMoves::update_tile(const TileRef& t) {
  const bool on_device = choice(t.unit).update_on_device;
  Tile& w = on_device ? device_tile(t) : tile(t);
  Op& op = emit_.op(OpKind::update, on_device ? LaneKind::compute : LaneKind::optimizer, t.unit);
  op.tile = t.index;
  op.element = t.element;
  op.numel = t.numel;
  Emitter::touch(op, w[StateKind::parameter], Role::parameters, Mode::read_write);
  if (has_remainder()) Emitter::touch(op, w[StateKind::remainder], Role::remainder, Mode::read_write);
  Emitter::touch(op, w[StateKind::exp_avg], Role::exp_avg, Mode::read_write);
  Emitter::touch(op, w[StateKind::exp_avg_sq], Role::exp_avg_sq, Mode::read_write);
  Emitter::touch(op, w[StateKind::gradient], Role::gradient, Mode::read);
  if (updates_ahead(t.unit))
    Emitter::touch(op, parts_.control.slice(0, control_result_bytes), Role::control, Mode::read);
  if (!on_device) return;
  Emitter::touch(op, parts_.diverged.slice(8 * static_cast<std::uint64_t>(t.unit), 8), Role::diverged,
                 t.index == 0 ? Mode::write : Mode::read_write);
  Op& up = emit_.op(OpKind::copy, LaneKind::d2h, t.unit);
  up.tile = t.index;
  for (const StateKind k : home_states)
    if (has_state(k)) Emitter::move_also(up, w[k], tile(t)[k]);
}

void OptimizerMoves::write_tile(const TileRef& t) {
  for (const StateKind k : home_states)
    if (has_state(k)) save_home_tile(t, k, tile(t)[k]);
}

/// Of replicas each saves some units: which, no plan knows, so that they run alike.
void OptimizerMoves::save_tile(const TileRef& t) {
  if (!work_.saves || kind_ != PlanKind::train) return;
  Op& op = emit_.op(OpKind::save, LaneKind::save, t.unit);
  op.tile = t.index;
  op.element = t.element;
  op.numel = t.numel;
  for (const StateKind k : home_states) {
    if (!has_state(k)) continue;
    const Part part = tile(t)[k];
    Emitter::touch(op, part, role_of(k), Mode::read);
    op.bytes += part.bytes;
  }
}

void OptimizerMoves::publish_tile(const TileRef& t) {
  if (choice(t.unit).update_on_device) return;  // in place
  const PerUnit& s = unit(t.unit);
  emit_.move(OpKind::copy, LaneKind::h2d, t.unit, tile(t)[StateKind::parameter],
             own_tile(s.open.valid() ? s.open : s.resident, t), t.index);
}

void OptimizerMoves::verify(bool ahead) {
  const auto counts = [&](UnitId u) { return has(u) && choice(u).update_on_device && updates_ahead(u) == ahead; };
  bool any = false;
  for (UnitId u = 0; u <= head_unit(); ++u) any |= counts(u);
  if (!any) return;
  const Part found = stage("diverged", parts_.diverged.bytes);
  emit_.move(OpKind::copy, LaneKind::d2h, -1, parts_.diverged, found);
  Op& op = emit_.op(OpKind::verify, LaneKind::optimizer);
  for (UnitId u = 0; u <= head_unit(); ++u)
    if (counts(u)) Emitter::touch(op, found.slice(8 * static_cast<std::uint64_t>(u), 8), Role::diverged, Mode::read);
}

}  // namespace sluice
