#include "src/schedule/rank_builder.h"

#include <algorithm>
#include <utility>

#include "sluice/exchange.h"
#include "sluice/status.h"
#include "src/model/sublayer.h"
#include "src/schedule/build.h"

namespace sluice {
namespace {

/// What an update reads and writes: those that have a home.
constexpr std::array home_states{StateKind::parameter, StateKind::remainder, StateKind::exp_avg, StateKind::exp_avg_sq};

}  // namespace

std::vector<TileRef> unit_tiles(const Workload& workload, const Schedule& schedule, UnitId unit) {
  const std::uint64_t shard = workload.shard_numel(unit);
  std::vector<TileRef> tiles;
  for (std::uint64_t at = 0; at < shard; at += schedule.tile_numel)
    tiles.push_back({unit, static_cast<int>(tiles.size()), at, std::min(schedule.tile_numel, shard - at)});
  return tiles;
}

RankBuilder::RankBuilder(Emitter& emitter, const Workload& workload, const Schedule& schedule, PlanKind kind)
    : emit_(emitter),
      work_(workload),
      schedule_(schedule),
      moments_(MomentLayout::of(workload.moments, schedule.tile_numel)),
      kind_(kind),
      lot_sums_(workload.lot_sums()),
      tied_(static_cast<std::size_t>(workload.lots)) {
  for (auto& row : cost_index_) row.fill(-1);
  units_.resize(work_.model->units.size());
  tokens_.resize(static_cast<std::size_t>(work_.micro_batches));
  for (UnitId u = 0; u <= head_unit(); ++u) {
    unit(u).mb.resize(static_cast<std::size_t>(work_.micro_batches));
    unit(u).tile.resize(unit_tiles(work_, schedule_, u).size());
    unit(u).device_tile.resize(unit(u).tile.size());
    costs_.push_back(sublayer_cost(*work_.model, spec(u), work_.shape, work_.dtype, *work_.kernels, work_.kv_capacity));
  }
  declare_persistent();
}

std::string RankBuilder::label(UnitId u, const char* what, int mb) const {
  if (!emit_.has_names()) return {};
  std::string s = spec(u).name + "." + what;
  if (mb >= 0) s += ".mb" + std::to_string(mb);
  return s;
}

bool RankBuilder::has_state(StateKind k) const {
  if (k == StateKind::parameter) return true;
  return !work_.inference && (k != StateKind::remainder || has_remainder());
}

std::uint64_t RankBuilder::state_bytes(StateKind k, std::uint64_t numel) const {
  switch (k) {
    case StateKind::parameter: return numel * element_bytes();
    case StateKind::remainder: return numel * 2;
    case StateKind::gradient: return numel * 4;
    default: return moments_.bytes(numel);
  }
}

// The same buffers in the same order for every kind of plan: they are what plans hand to each other.
void RankBuilder::declare_persistent() {
  const auto units = static_cast<std::uint64_t>(units_.size());
  const auto micro_batches = static_cast<std::uint64_t>(work_.micro_batches);
  losses_ = device("losses", 8 * micro_batches, Life::persistent);
  if (!work_.inference && std::ranges::any_of(schedule_.units, &UnitChoice::update_on_device))
    diverged_ = device("diverged", 8 * units, Life::persistent);
  if (const std::uint64_t numel = rope_table_numel(work_.model->config, work_.positions());
      work_.kernels->apart && numel > 0)
    emit_.at(device("rope", 2 * sizeof(float) * numel, Life::persistent)).holds = Holds::rope;
  control_ = emit_.buffer("control", Tier::host, sizeof(ControlBlock) + 8 * micro_batches, Life::persistent);
  for (UnitId u = 0; u <= head_unit(); ++u) {
    if (choice(u).resident) {
      unit(u).resident =
          device(label(u, "parameter.resident"), work_.full_numel(u) * element_bytes(), Life::persistent);
      emit_.at(unit(u).resident).unit = u;
      emit_.at(unit(u).resident).holds = Holds::resident;
    }
    declare_home(u);
  }
  if (kind_ != PlanKind::decode) return;
  kv_.resize(units_.size());
  for (UnitId u = 0; u <= head_unit(); ++u) {
    const std::uint64_t bytes = kv_cache_bytes(*work_.model, spec(u), work_.kv_capacity, work_.dtype);
    if (bytes > 0) kv_[static_cast<std::size_t>(u)] = device(label(u, "kv_cache"), bytes, Life::persistent);
  }
  logits_ = emit_.buffer("logits", Tier::host, 4 * static_cast<std::uint64_t>(work_.model->config.vocabulary),
                         Life::persistent);
  emit_.at(logits_).holds = Holds::logits;
}

Part RankBuilder::declare_state(UnitId u, StateKind k, Place place) {
  const Tier tier = place == Place::nvme ? Tier::nvme : Tier::host;
  const std::uint64_t bytes = state_bytes(k, work_.shard_numel(u)), tile = schedule_.tile_numel;
  const Part p = emit_.buffer(label(u, state_names[static_cast<std::size_t>(k)]), tier, bytes, Life::persistent);
  Buffer& b = emit_.at(p);
  b.holds = Holds::home;
  b.state = k;
  b.unit = u;
  const bool moment = k == StateKind::exp_avg || k == StateKind::exp_avg_sq;
  b.block_bytes = moment ? moments_.block_bytes(work_.block_bytes, tile)
                         : static_cast<std::uint32_t>(std::min<std::uint64_t>(work_.block_bytes, state_bytes(k, tile)));
  if (tier == Tier::nvme && work_.durable && k != StateKind::gradient) b.slots = 2;
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
  if (schedule_.update_ahead && !work_.inference)
    unit(u).gradient_wait = declare_state(u, StateKind::gradient, c.gradient);
}

Part RankBuilder::device(const std::string& name, std::uint64_t bytes, Life life) {
  return emit_.buffer(name, Tier::device, bytes, life);
}

Part RankBuilder::stage(const std::string& name, std::uint64_t bytes) {
  return emit_.buffer(name + ".stage", Tier::host, bytes, Life::brief);
}

Part RankBuilder::tile_of(const Part& whole, const TileRef& t, std::uint64_t bytes_per_element) const {
  return whole.slice(t.element * bytes_per_element, t.numel * bytes_per_element);
}

/// Of a unit's whole parameters on the device.
Part RankBuilder::own_tile(const Part& parameters, const TileRef& t) const {
  const std::uint64_t shard_bytes = work_.shard_numel(t.unit) * element_bytes();
  return tile_of(parameters.slice(work_.topology.position(shard_axes) * shard_bytes, shard_bytes), t, element_bytes());
}

std::string RankBuilder::tile_label(const TileRef& t, StateKind k) const {
  if (!emit_.has_names()) return {};
  return label(t.unit, state_names[static_cast<std::size_t>(k)]) + ".t" + std::to_string(t.index);
}

Part RankBuilder::state_tile(const Part& whole, const TileRef& t, StateKind k) const {
  const std::uint64_t begin = state_bytes(k, t.element);
  return whole.slice(begin, state_bytes(k, t.element + t.numel) - begin);
}

// Durable state has two slots. Until a unit is updated in this iteration its state is read from the current one;
// the update writes the next one, and reads after it find it there.
Part RankBuilder::slot_tile(const Part& whole, const TileRef& t, StateKind k, bool write) {
  const bool next = emit_.at(whole).slots == 2 && (write || unit(t.unit).updated);
  return state_tile(whole, t, k).in_slot(next ? Slot::next : Slot::current);
}

Part RankBuilder::home_tile(const TileRef& t, StateKind k, bool write) {
  return slot_tile(unit(t.unit).home[static_cast<std::size_t>(k)], t, k, write);
}

/// Where the tile of a state is in host memory: its home if that is there, else staging.
Part RankBuilder::host_tile(const TileRef& t, StateKind k) {
  const Part home = home_tile(t, k, false);
  return emit_.at(home).tier == Tier::host ? home : stage(tile_label(t, k), home.bytes);
}

/// The tile of a state in host memory: in place if its home is there, else read into staging.
Part RankBuilder::bring_home_tile(const TileRef& t, StateKind k) {
  const Part home = home_tile(t, k, false), host = host_tile(t, k);
  if (emit_.at(home).tier == Tier::nvme) emit_.move(OpKind::read, LaneKind::nvme_read, t.unit, home, host, t.index);
  return host;
}

/// To the drive, where the state has its home or, if it lives in host memory, its durable copy.
void RankBuilder::save_home_tile(const TileRef& t, StateKind k, const Part& host) {
  const PerUnit& s = unit(t.unit);
  const Part& home = s.home[static_cast<std::size_t>(k)];
  const Part& kept = emit_.at(home).tier == Tier::nvme ? home : s.mirror[static_cast<std::size_t>(k)];
  if (kept.valid()) emit_.move(OpKind::write, LaneKind::nvme_write, t.unit, host, slot_tile(kept, t, k, true), t.index);
}

// ---- parameters on the device

void RankBuilder::open_parameters(UnitId u) {
  PerUnit& s = unit(u);
  s.open = s.resident.valid() ? s.resident : device(label(u, "parameter.open"), work_.full_numel(u) * element_bytes());
}

void RankBuilder::fetch_tile(const TileRef& t, bool retain) {
  const Part host = bring_home_tile(t, StateKind::parameter);
  if (retain) tile(t)[StateKind::parameter] = host;
  emit_.move(OpKind::copy, LaneKind::h2d, t.unit, host, own_tile(unit(t.unit).open, t), t.index);
}

void RankBuilder::gather(UnitId u) {
  if (work_.shards() == 1) return;
  // After an update in the backward pass only the resident copy is there.
  gather_parts(u, unit(u).open.valid() ? unit(u).open : unit(u).resident, sharding_group);
}

/// The equal part that is this rank's by its place in the group.
Part RankBuilder::own_part(const Part& whole, std::int32_t group) const {
  const AxisSet axes = emit_.plan().groups[static_cast<std::size_t>(group)];
  const std::uint64_t part = whole.bytes / work_.topology.size(axes);
  return whole.slice(work_.topology.position(axes) * part, part);
}

/// The others' parts have no contents yet: they are written only.
void RankBuilder::gather_parts(UnitId u, const Part& whole, std::int32_t group) {
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

void RankBuilder::keep_second_copy(UnitId u) {
  const Part own = own_part(unit(u).open, close_group);
  unit(u).second_copy = emit_.buffer(label(u, "parameter.second"), Tier::host, own.bytes, Life::lasting);
  emit_.move(OpKind::copy, LaneKind::d2h, u, own, unit(u).second_copy);
}

void RankBuilder::fetch_second_copy(UnitId u) {
  const Part& open = unit(u).open;
  emit_.move(OpKind::copy, LaneKind::h2d, u, unit(u).second_copy, own_part(open, close_group));
  if (work_.close_ranks() > 1) gather_parts(u, open, close_group);
}

void RankBuilder::close_parameters(UnitId u) { unit(u).open = Part{}; }

// ---- optimizer tiles

void RankBuilder::read_tile(const TileRef& t) {
  Tile& w = tile(t);
  // With updates in the backward pass the tile that was fetched for it is still in host memory; only the embedding,
  // whose backward needs no parameters, and resident units have none.
  const bool retained = kind_ == PlanKind::train && !schedule_.update_ahead && t.unit != 0 &&
                        !choice(t.unit).resident && !unit(t.unit).fetched_before;
  for (const StateKind k : home_states) {
    if (!has_state(k) || (k == StateKind::parameter && retained)) continue;
    // What is updated in the resident parameters only comes up.
    const bool comes_up = k == StateKind::parameter && choice(t.unit).resident && choice(t.unit).update_on_device;
    w[k] = comes_up ? host_tile(t, k) : bring_home_tile(t, k);
  }
  if (!schedule_.update_ahead) return;
  const Part wait = tile_of(unit(t.unit).gradient_wait, t, 4);
  Part& gradient = w[StateKind::gradient];
  if (emit_.at(wait).tier == Tier::host) {
    gradient = wait;
    return;
  }
  gradient = stage(tile_label(t, StateKind::gradient), wait.bytes);
  emit_.move(OpKind::read, LaneKind::nvme_read, t.unit, wait, gradient, t.index);
}

bool RankBuilder::can_load(const TileRef& t) {
  const UnitChoice& c = choice(t.unit);
  if (!c.update_on_device || c.resident) return true;
  const bool into_open = kind_ == PlanKind::train && schedule_.update_ahead;  // what the next pass computes with
  return (into_open ? unit(t.unit).open : tile(t)[StateKind::parameter]).valid();
}

void RankBuilder::load_tile(const TileRef& t) {
  if (!choice(t.unit).update_on_device) return;
  const PerUnit& s = unit(t.unit);
  // In the backward pass open parameters are those of before the update.
  const Part& whole = s.resident.valid() || !schedule_.update_ahead ? s.resident : s.open;
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

void RankBuilder::update_tile(const TileRef& t) {
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
  if (schedule_.update_ahead) Emitter::touch(op, control_.slice(0, control_result_bytes), Role::control, Mode::read);
  if (!on_device) return;
  Emitter::touch(op, diverged_.slice(8 * static_cast<std::uint64_t>(t.unit), 8), Role::diverged,
                 t.index == 0 ? Mode::write : Mode::read_write);
  Op& up = emit_.op(OpKind::copy, LaneKind::d2h, t.unit);
  up.tile = t.index;
  for (const StateKind k : home_states)
    if (has_state(k)) Emitter::move_also(up, w[k], tile(t)[k]);
}

void RankBuilder::write_tile(const TileRef& t) {
  for (const StateKind k : home_states)
    if (has_state(k)) save_home_tile(t, k, tile(t)[k]);
}

void RankBuilder::publish_tile(const TileRef& t) {
  if (choice(t.unit).update_on_device) return;  // in place
  const PerUnit& s = unit(t.unit);
  emit_.move(OpKind::copy, LaneKind::h2d, t.unit, tile(t)[StateKind::parameter],
             own_tile(s.open.valid() ? s.open : s.resident, t), t.index);
}

void RankBuilder::verify() {
  if (!diverged_.valid()) return;  // the CPU updates all units
  const Part found = stage("diverged", diverged_.bytes);
  emit_.move(OpKind::copy, LaneKind::d2h, -1, diverged_, found);
  Op& op = emit_.op(OpKind::verify, LaneKind::optimizer);
  for (UnitId u = 0; u <= head_unit(); ++u)
    if (choice(u).update_on_device)
      Emitter::touch(op, found.slice(8 * static_cast<std::uint64_t>(u), 8), Role::diverged, Mode::read);
}

// ---- gradients

void RankBuilder::bring_gradients(UnitId u) {
  PerUnit& s = unit(u);
  for (std::size_t i = 0; i < s.parked_gradients.size(); ++i)
    s.gradients.push_back(
        bring(s.parked_gradients[i], lot_label(u, "gradient", static_cast<int>(i)), u, -1, Life::lasting));
  s.parked_gradients.clear();
}

void RankBuilder::park_gradients(UnitId u) {
  PerUnit& s = unit(u);
  if (choice(u).accumulator == Place::device) return;
  for (std::size_t i = 0; i < s.gradients.size(); ++i)
    s.parked_gradients.push_back(
        park(s.gradients[i], choice(u).accumulator, lot_label(u, "gradient", static_cast<int>(i)), u, -1));
  s.gradients.clear();
}

std::string RankBuilder::lot_label(UnitId u, const char* what, int lot) const {
  std::string name = label(u, what);
  if (!name.empty() && work_.lots > 1) name += ".lot" + std::to_string(lot);
  return name;
}

/// The gradient of the micro-batch's lot is at the end of the unit's partial sums. How a backward op meets it.
Mode RankBuilder::open_lot(UnitId u, int mb) {
  if (!lot_sums_.begins_lot(mb)) return Mode::read_write;
  unit(u).gradients.push_back(
      device(lot_label(u, "gradient", lot_sums_.lot_of(mb)), work_.full_numel(u) * 4, Life::lasting));
  return Mode::write;
}

/// Behind a lot's last micro-batch. The two gradients of a tied matrix are accumulated apart and added once a lot, so
/// that the order of additions does not depend on how micro-batches are grouped.
void RankBuilder::close_lot(UnitId u, int mb) {
  if (!lot_sums_.ends_lot(mb)) return;
  const int lot = lot_sums_.lot_of(mb);
  std::vector<Part>& sums = unit(u).gradients;
  if (u == 0 && has_tied_gradient()) {
    Part& tied = tied_gradient(lot);
    add(tied, sums.back().slice(spec(0).tensors.front().offset * 4, tied.bytes), 0);
    tied = Part{};
  }
  if (work_.reduction == Reduction::pass) return;  // once it is reduced
  for (int left = lot_sums_.additions_after(lot); left > 0; --left) {
    const Part top = sums.back();
    sums.pop_back();
    add(top, sums.back(), u);
  }
}

void RankBuilder::add(const Part& from, const Part& to, UnitId u) {
  Op& op = emit_.op(OpKind::accumulate, LaneKind::compute, u);
  op.bytes = from.bytes;
  Emitter::touch(op, from, Role::src, Mode::read);
  Emitter::touch(op, to, Role::dst, Mode::read_write);
}

/// On the device, wherever it was.
Part& RankBuilder::tied_gradient(int lot) {
  Tied& tied = tied_[static_cast<std::size_t>(lot)];
  if (tied.open.valid()) return tied.open;
  const std::string name = lot_label(0, "tied_gradient", lot);
  if (tied.parked.part.valid()) {
    tied.open = bring(tied.parked, name, 0, -1, Life::lasting);
    tied.parked = {};
    return tied.open;
  }
  const ModelConfig& c = work_.model->config;
  tied.open = device(name, 4 * static_cast<std::uint64_t>(c.vocabulary * c.hidden), Life::lasting);
  return tied.open;
}

void RankBuilder::park_tied_gradients() {
  if (choice(0).accumulator == Place::device) return;
  for (std::size_t lot = 0; lot < tied_.size(); ++lot) {
    Tied& tied = tied_[lot];
    if (!tied.open.valid()) continue;
    tied.parked = park(tied.open, choice(0).accumulator, lot_label(0, "tied_gradient", static_cast<int>(lot)), 0, -1);
    tied.open = Part{};
  }
}

void RankBuilder::reduce(UnitId u, int lot) {
  PerUnit& s = unit(u);
  SLUICE_CHECK(s.gradients.size() == 1, "unit %d has %zu partial sums", u, s.gradients.size());
  Part sum = reduced(u, s.gradients.front());
  s.gradients.clear();
  const bool is_last = work_.reduction == Reduction::last || lot == work_.lots - 1;
  if (work_.reduction == Reduction::pass) {
    // The ranks' lots of a pass are a node of the tree; passes add up as a rank's own lots do.
    for (int left = lot_sums_.additions_after(lot); left > 0; --left) {
      const Parked below = s.shard_sums.back();
      s.shard_sums.pop_back();
      const Part to = below.place == Place::device
                          ? below.part
                          : bring(below, lot_label(u, "gradient.shard", lot - 1), u, -1, Life::lasting);
      add(sum, to, u);
      sum = to;
    }
  }
  if (is_last) {
    s.shard_gradient = sum;
    return;
  }
  const Place place = choice(u).accumulator;
  s.shard_sums.push_back(place == Place::device ? Parked{place, sum}
                                                : park(sum, place, lot_label(u, "gradient.shard", lot), u, -1));
}

/// Over the ranks: first those that share one copy of the states, neighbours and so a part of the tree, then the
/// replicas, each of which adds up a part of the shard for all of them.
Part RankBuilder::reduced(UnitId u, const Part& gradient) {
  if (work_.ranks() == 1) return gradient;
  const auto on_device = [&] {
    const Life life = work_.reduction == Reduction::pass ? Life::lasting : Life::brief;
    return work_.shards() == 1 ? gradient : device(label(u, "gradient.shard"), work_.shard_numel(u) * 4, life);
  };
  Part sum = gradient;
  if (work_.meets_in_host) {
    sum = stage(label(u, "gradient"), gradient.bytes);
    emit_.move(OpKind::copy, LaneKind::d2h, u, gradient, sum);
  }
  if (work_.shards() > 1) {
    const Part shard = work_.meets_in_host ? own_part(sum, sharding_group) : on_device();
    reduce_parts(u, sum, shard, sharding_group);
    sum = shard;
  }
  if (work_.replicas() > 1) {
    const Part own = own_part(sum, replica_group);
    reduce_parts(u, sum, own, replica_group);
    // Whoever reads any of it waits for the gather, on all ranks alike, whichever part is their own.
    Op& op = emit_.collective(OpKind::all_gather, replica_group, u);
    op.bytes = sum.bytes - own.bytes;
    Emitter::touch(op, sum, Role::dst, Mode::read_write);
  }
  if (!work_.meets_in_host) return sum;
  const Part shard = on_device();
  emit_.move(OpKind::copy, LaneKind::h2d, u, sum, shard);
  return shard;
}

void RankBuilder::reduce_parts(UnitId u, const Part& whole, const Part& own, std::int32_t group) {
  const RankId members = work_.topology.size(emit_.plan().groups[static_cast<std::size_t>(group)]);
  Op& op = emit_.collective(OpKind::reduce_scatter, group, u);
  op.sums = work_.sums;
  op.bytes = wire_bytes(op.sums, own.bytes) * (members - 1u);
  Emitter::touch(op, whole, Role::src, Mode::read);
  Emitter::touch(op, own, Role::dst, Mode::write);
  if (!work_.exchanges) return;
  const std::uint64_t room = exchange_bytes(members, own.bytes);
  Emitter::touch(op, emit_.buffer(label(u, "exchange"), Tier::host, room, Life::brief), Role::workspace, Mode::write);
}

void RankBuilder::drain_tile(const TileRef& t) {
  const Part from = tile_of(unit(t.unit).shard_gradient, t, 4);
  const bool waits_in_host = schedule_.update_ahead && choice(t.unit).gradient == Place::host;
  const Part host =
      waits_in_host ? tile_of(unit(t.unit).gradient_wait, t, 4) : stage(tile_label(t, StateKind::gradient), from.bytes);
  emit_.move(OpKind::copy, LaneKind::d2h, t.unit, from, host, t.index);
  Op& norm = emit_.op(OpKind::grad_norm, LaneKind::optimizer, t.unit);
  norm.tile = t.index;
  norm.element = t.element;
  norm.numel = t.numel;
  norm.bytes = host.bytes;
  Emitter::touch(norm, host, Role::gradient, Mode::read);
  norm.accumulate = std::exchange(has_norm_, true);
  Emitter::touch(norm, control_.slice(control_result_bytes, sizeof(ExactSum)), Role::control,
                 norm.accumulate ? Mode::read_write : Mode::write);
  if (!schedule_.update_ahead) {
    const bool on_device = choice(t.unit).update_on_device;
    (on_device ? device_tile(t) : tile(t))[StateKind::gradient] = on_device ? from : host;
  } else if (!waits_in_host) {
    const Part wait = tile_of(unit(t.unit).gradient_wait, t, 4);
    emit_.move(OpKind::write, LaneKind::nvme_write, t.unit, host, wait, t.index);
  }
}

void RankBuilder::close_gradient(UnitId u) { unit(u).shard_gradient = Part{}; }

// ---- step control

void RankBuilder::collect_losses() {
  emit_.move(OpKind::copy, LaneKind::d2h, head_unit(), losses_, control_.slice(sizeof(ControlBlock), losses_.bytes));
}

void RankBuilder::control() {
  Op& op = work_.ranks() > 1 ? emit_.collective(OpKind::control, control_group, -1, LaneKind::optimizer)
                             : emit_.op(OpKind::control, LaneKind::optimizer);
  op.is_replica = work_.topology.position(replica_axes) > 0;
  Emitter::touch(op, control_, Role::control, Mode::read_write);
}

void RankBuilder::step_end() {
  Op& op = emit_.op(OpKind::step_end, LaneKind::optimizer);
  Emitter::touch(op, control_, Role::control, Mode::read);
}

void RankBuilder::commit() {
  emit_.op(OpKind::sync, LaneKind::commit);
  emit_.op(OpKind::commit, LaneKind::commit);
}

}  // namespace sluice
