#include "src/schedule/rank_builder.h"

#include <algorithm>

#include "src/model/sublayer.h"

namespace sluice {

RankBuilder::RankBuilder(RankContext& context)
    : RankMoves(context), parameters(context), optimizer(context), gradients(context), activations(context, gradients) {
  parts_.units.resize(work_.model->units.size());
  parts_.tokens.resize(static_cast<std::size_t>(work_.micro_batches));
  for (UnitId u = 0; u <= head_unit(); ++u) {
    unit(u).shard_numel = work_.shard_numel(u);
    unit(u).mb.resize(static_cast<std::size_t>(work_.micro_batches));
    unit(u).tile.resize(unit_tiles(work_, schedule_, u).size());
    unit(u).device_tile.resize(unit(u).tile.size());
  }
  declare_persistent();
}

// The same buffers in the same order for every kind of plan: they are what plans hand to each other. Last those that
// not all of them have.
void RankBuilder::declare_persistent() {
  const auto units = static_cast<std::uint64_t>(parts_.units.size());
  const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
  bool updates_on_device = false;
  for (UnitId u = 0; u <= head_unit(); ++u) updates_on_device |= has(u) && choice(u).update_on_device;
  parts_.losses = device("losses", 8 * micro_batches, Life::persistent);
  if (!work_.inference && updates_on_device) parts_.diverged = device("diverged", 8 * units, Life::persistent);
  if (const std::uint64_t bytes = rope_bytes(work_.model->config, work_.shape, work_.positions());
      work_.kernels->apart && bytes > 0)
    emit_.at(device("rope", bytes, Life::persistent)).holds = Holds::rope;
  parts_.control = emit_.buffer("control", Tier::host, sizeof(ControlBlock) + 8 * micro_batches, Life::persistent);
  for (UnitId u = 0; u <= head_unit(); ++u)
    if (has(u)) declare_home(u);
  for (UnitId u = 0; u <= head_unit(); ++u) {
    if (!has(u) || !choice(u).resident) continue;
    unit(u).resident = device(label(u, "parameter.resident"), work_.full_numel(u) * element_bytes(), Life::persistent);
    emit_.at(unit(u).resident).unit = u;
    emit_.at(unit(u).resident).holds = Holds::resident;
  }
  if (kind_ == PlanKind::train || kind_ == PlanKind::flush) declare_carried_gradients();
  if (kind_ != PlanKind::decode) return;
  parts_.kv.resize(parts_.units.size());
  for (UnitId u = 0; u <= head_unit(); ++u) {
    const std::uint64_t bytes = kv_cache_bytes(*work_.model, spec(u), work_.kv_capacity, work_.dtype);
    if (bytes > 0) parts_.kv[static_cast<std::size_t>(u)] = device(label(u, "kv_cache"), bytes, Life::persistent);
  }
  parts_.logits = emit_.buffer("logits", Tier::host, 4 * static_cast<std::uint64_t>(work_.model->config.vocabulary),
                               Life::persistent);
  emit_.at(parts_.logits).holds = Holds::logits;
}

/// Those that wait on the device: the last unit's, whose life has the shortest gap, lies lowest.
void RankBuilder::declare_carried_gradients() {
  for (UnitId u = head_unit(); u >= 0; --u)
    if (has(u) && schedule_.stores_gradient(u) && choice(u).gradient == Place::device)
      unit(u).gradient_wait = declare_state(u, StateKind::gradient, Place::device);
}

Part RankBuilder::declare_state(UnitId u, StateKind k, Place place) {
  const Tier tier = place == Place::nvme ? Tier::nvme : place == Place::host ? Tier::host : Tier::device;
  const std::uint64_t bytes = state_bytes(k, work_.shard_numel(u)), tile = schedule_.tile_numel;
  const Part p = emit_.buffer(label(u, state_names[static_cast<std::size_t>(k)]), tier, bytes,
                              tier == Tier::device ? Life::carried : Life::persistent);
  Buffer& b = emit_.at(p);
  b.holds = Holds::home;
  b.state = k;
  b.unit = u;
  const bool moment = k == StateKind::exp_avg || k == StateKind::exp_avg_sq;
  b.block_bytes = moment ? moments_.block_bytes(work_.block_bytes, tile)
                         : static_cast<std::uint32_t>(std::min<std::uint64_t>(work_.block_bytes, state_bytes(k, tile)));
  if (tier == Tier::nvme && work_.durable && k != StateKind::gradient) b.slots = 2;
  b.behind = b.slots == 2 && kind_ == PlanKind::train && schedule_.mixes() && updates_ahead(u);
  return p;
}

void RankBuilder::declare_home(UnitId u) {
  const UnitChoice& c = choice(u);
  for (StateKind k : home_states) {
    if (!has_state(k)) continue;
    const Place place = k == StateKind::parameter ? c.parameter_home : c.state_home;
    unit(u).home[static_cast<std::size_t>(k)] = declare_state(u, k, place);
    if (!work_.durable || place == Place::nvme) continue;
    const Part mirror = declare_state(u, k, Place::nvme);
    emit_.at(mirror).name += ".durable";
    emit_.at(mirror).holds = Holds::mirror;
    unit(u).mirror[static_cast<std::size_t>(k)] = mirror;
  }
  if (has_waiting_gradient(u) && c.gradient != Place::device)
    unit(u).gradient_wait = declare_state(u, StateKind::gradient, c.gradient);
}

// ---- step control

void RankBuilder::wait_for_commits() {
  const bool meets = kind_ == PlanKind::train && work_.durable && !schedule_.update_ahead && stages_.count() > 1;
  if (meets) emit_.collective(OpKind::barrier, barrier_group());
}

/// The head's stage has them; the others add nothing.
void RankBuilder::collect_losses() {
  if (!has(head_unit())) return;
  emit_.move(OpKind::copy, LaneKind::d2h, head_unit(), parts_.losses,
             parts_.control.slice(sizeof(ControlBlock), parts_.losses.bytes));
}

void RankBuilder::control() {
  Op& op = work_.ranks() > 1 ? emit_.collective(OpKind::control, control_group, -1, LaneKind::optimizer)
                             : emit_.op(OpKind::control, LaneKind::optimizer);
  op.is_replica = work_.topology.position(replica_axes) > 0;
  Emitter::touch(op, parts_.control, Role::control, Mode::read_write);
  if (kind_ != PlanKind::train || schedule_.update_ahead || !schedule_.keeps_gradients) return;
  // They are all there when the norm is known, and the next step's come behind it.
  for (UnitId u = 0; u <= head_unit(); ++u)
    if (has(u)) Emitter::touch(op, unit(u).gradient_wait, Role::gradient, Mode::read);
}

void RankBuilder::step_end() {
  Op& op = emit_.op(OpKind::step_end, LaneKind::optimizer);
  Emitter::touch(op, parts_.control, Role::control, Mode::read);
}

void RankBuilder::commit() {
  emit_.op(OpKind::sync, LaneKind::commit);
  emit_.op(OpKind::commit, LaneKind::commit);
}

}  // namespace sluice
