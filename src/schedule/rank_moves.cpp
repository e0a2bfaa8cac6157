#include "src/schedule/rank_moves.h"

#include <algorithm>

#include "sluice/exchange.h"
#include "src/device/calibrate.h"

namespace sluice {

std::vector<TileRef> unit_tiles(const Workload& workload, const Schedule& schedule, UnitId unit) {
  const std::uint64_t shard = workload.shard_numel(unit);
  std::vector<TileRef> tiles;
  for (std::uint64_t at = 0; at < shard; at += schedule.tile_numel)
    tiles.push_back({unit, static_cast<int>(tiles.size()), at, std::min(schedule.tile_numel, shard - at)});
  return tiles;
}

std::string RankMoves::label(UnitId u, const char* what, int mb) const {
  if (!emit_.has_names()) return {};
  std::string s = spec(u).name + "." + what;
  if (mb >= 0) s += ".mb" + std::to_string(mb);
  return s;
}

bool RankMoves::has_state(StateKind k) const {
  if (k == StateKind::parameter) return true;
  return !work_.inference && (k != StateKind::remainder || has_remainder());
}

std::uint64_t RankMoves::state_bytes(StateKind k, std::uint64_t numel) const {
  switch (k) {
    case StateKind::parameter: return numel * element_bytes();
    case StateKind::remainder: return numel * 2;
    case StateKind::gradient: return numel * gradient_bytes();
    default: return moments_.bytes(numel);
  }
}

Part RankMoves::device(const std::string& name, std::uint64_t bytes, Life life) {
  return emit_.buffer(name, Tier::device, bytes, life);
}

Part RankMoves::stage(const std::string& name, std::uint64_t bytes) {
  return emit_.buffer(emit_.has_names() ? name + ".stage" : name, Tier::host, bytes, Life::brief);
}

Part RankMoves::tile_of(const Part& whole, const TileRef& t, std::uint64_t bytes_per_element) const {
  return whole.slice(t.element * bytes_per_element, t.numel * bytes_per_element);
}

/// Of a unit's whole parameters on the device.
Part RankMoves::own_tile(const Part& parameters, const TileRef& t) const {
  const std::uint64_t shard_bytes = unit(t.unit).shard_numel * element_bytes();
  return tile_of(parameters.slice(shard_ * shard_bytes, shard_bytes), t, element_bytes());
}

std::string RankMoves::tile_label(const TileRef& t, StateKind k) const {
  if (!emit_.has_names()) return {};
  return label(t.unit, state_names[static_cast<std::size_t>(k)]) + ".t" + std::to_string(t.index);
}

Part RankMoves::state_tile(const Part& whole, const TileRef& t, StateKind k) const {
  const std::uint64_t begin = state_bytes(k, t.element);
  return whole.slice(begin, state_bytes(k, t.element + t.numel) - begin);
}

// Durable state has two slots. Until a unit is updated in this iteration its state is read from the current one;
// the update writes the next one, and reads after it find it there.
Part RankMoves::slot_tile(const Part& whole, const TileRef& t, StateKind k, bool write) {
  const bool next = emit_.at(whole).slots == 2 && (write || unit(t.unit).updated);
  return state_tile(whole, t, k).in_slot(next ? Slot::next : Slot::current);
}

Part RankMoves::home_tile(const TileRef& t, StateKind k, bool write) {
  return slot_tile(unit(t.unit).home[static_cast<std::size_t>(k)], t, k, write);
}

/// Where the tile of a state is in host memory: its home if that is there, else staging.
Part RankMoves::host_tile(const TileRef& t, StateKind k) {
  const Part home = home_tile(t, k, false);
  return emit_.at(home).tier == Tier::host ? home : stage(tile_label(t, k), home.bytes);
}

/// The tile of a state in host memory: in place if its home is there, else read into staging.
Part RankMoves::bring_home_tile(const TileRef& t, StateKind k) {
  const Part home = home_tile(t, k, false), host = host_tile(t, k);
  if (emit_.at(home).tier == Tier::nvme) emit_.move(OpKind::read, LaneKind::nvme_read, t.unit, home, host, t.index);
  return host;
}

/// To the drive, where the state has its home or, if it lives in host memory, its durable copy.
void RankMoves::save_home_tile(const TileRef& t, StateKind k, const Part& host) {
  const PerUnit& s = unit(t.unit);
  const Part& home = s.home[static_cast<std::size_t>(k)];
  const Part& kept = emit_.at(home).tier == Tier::nvme ? home : s.mirror[static_cast<std::size_t>(k)];
  if (kept.valid()) emit_.move(OpKind::write, LaneKind::nvme_write, t.unit, host, slot_tile(kept, t, k, true), t.index);
}

/// The equal part that is this rank's by its place in the group.
Part RankMoves::own_part(const Part& whole, std::int32_t group) const {
  const AxisSet axes = emit_.plan().groups[static_cast<std::size_t>(group)];
  const std::uint64_t part = whole.bytes / work_.topology.size(axes);
  return whole.slice(work_.topology.position(axes) * part, part);
}

Op& RankMoves::meet(OpKind kind, std::int32_t group, UnitId u, const Part& part) {
  const bool on_device = work_.collects_on_device && emit_.at(part).tier == Tier::device;
  return on_device ? emit_.device_collective(kind, group, u) : emit_.collective(kind, group, u);
}

void RankMoves::gather_parts(UnitId u, const Part& whole, std::int32_t group) {
  const Part own = own_part(whole, group);
  const std::uint64_t before = own.offset - whole.offset, after = before + own.bytes;
  const auto each_other = [&](const Part& of, auto visit) {
    if (before > 0) visit(of.slice(0, before));
    if (after < of.bytes) visit(of.slice(after, of.bytes - after));
  };
  Part met = whole;
  if (work_.stages_collectives()) {
    met = stage(label(u, "gathered"), whole.bytes);
    emit_.move(OpKind::copy, LaneKind::d2h, u, own, own_part(met, group));
  }
  Op& op = meet(OpKind::all_gather, group, u, met);
  op.bytes = whole.bytes - own.bytes;
  Emitter::touch(op, own_part(met, group), Role::dst, Mode::read);
  each_other(met, [&](const Part& part) { Emitter::touch(op, part, Role::dst, Mode::write); });
  if (!work_.stages_collectives()) return;
  Op& down = emit_.op(OpKind::copy, LaneKind::h2d, u);
  std::vector<Part> from;
  each_other(met, [&](const Part& part) { from.push_back(part); });
  each_other(whole, [&, i = std::size_t{0}](const Part& part) mutable { Emitter::move_also(down, from[i++], part); });
}

void RankMoves::reduce_parts(UnitId u, const Part& whole, const Part& own, std::int32_t group) {
  const RankId members = work_.topology.size(emit_.plan().groups[static_cast<std::size_t>(group)]);
  Op& op = meet(OpKind::reduce_scatter, group, u, whole);
  op.sums = work_.sums == RankSums::int4 ? RankSums::tree : work_.sums;  // what goes in bits has ops of its own
  op.bytes = (work_.sends_sums() ? wire_bytes(op.sums, own.bytes) : own.bytes) * (members - 1u);
  Emitter::touch(op, whole, Role::src, Mode::read);
  Emitter::touch(op, own, Role::dst, Mode::write);
  const bool on_device = is_of_device_collectives(emit_.plan().lanes[op.lane]);
  if (!work_.sends_sums() || (on_device && op.sums == RankSums::native)) return;
  const std::uint64_t room = on_device ? device_exchange_bytes(members, own.bytes) : exchange_bytes(members, own.bytes);
  Emitter::touch(op, emit_.buffer(label(u, "exchange"), on_device ? Tier::device : Tier::host, room, Life::brief),
                 Role::workspace, Mode::write);
}

void RankMoves::exchange_parts(UnitId u, const Part& from, const Part& to, std::int32_t group, std::int64_t pieces,
                               RankSums sums) {
  carry(OpKind::all_to_all, u, from, to, group, pieces, sums, from.bytes - own_part(from, group).bytes);
}

void RankMoves::shift_part(UnitId u, const Part& from, const Part& to, std::int32_t group) {
  carry(OpKind::ring_shift, u, from, to, group, 1, RankSums::tree, to.bytes);
}

/// A collective from one buffer to another, through host memory where ranks meet there. `arrives`: bytes.
void RankMoves::carry(OpKind kind, UnitId u, const Part& from, const Part& to, std::int32_t group, std::int64_t pieces,
                      RankSums sums, std::uint64_t arrives) {
  Part given = from, taken = to;
  if (work_.stages_collectives()) {
    given = stage(label(u, "given"), from.bytes);
    taken = stage(label(u, "taken"), to.bytes);
    emit_.move(OpKind::copy, LaneKind::d2h, u, from, given);
  }
  Op& op = meet(kind, group, u, given);
  op.pieces = static_cast<std::int32_t>(pieces);
  op.sums = sums;
  op.bytes = arrives;
  Emitter::touch(op, given, Role::src, Mode::read);
  Emitter::touch(op, taken, Role::dst, Mode::write);
  if (work_.stages_collectives()) emit_.move(OpKind::copy, LaneKind::h2d, u, taken, to);
}

Part RankMoves::quantized(UnitId u, const Part& from, std::int64_t numel, std::int64_t pieces, const Quantization& q,
                          const std::string& name) {
  const Part to = device(name, quantized_bytes(numel, q) * static_cast<std::uint64_t>(pieces));
  quantize(OpKind::quantize, u, from, to, numel, pieces, q);
  return to;
}

Op& RankMoves::quantize(OpKind kind, UnitId u, const Part& from, const Part& to, std::int64_t numel,
                        std::int64_t pieces, const Quantization& q) {
  Op& op = emit_.op(kind, LaneKind::compute, u);
  op.numel = static_cast<std::uint64_t>(numel);
  op.pieces = static_cast<std::int32_t>(pieces);
  op.quantization = q;
  Emitter::touch(op, from, Role::src, Mode::read);
  Emitter::touch(op, to, Role::dst, Mode::write);
  return op;
}

void RankMoves::add_met(UnitId u, const Part& whole, std::int32_t group) {
  const Part own = own_part(whole, group);
  reduce_parts(u, whole, own, group);
  // Whoever reads any of it waits for the gather, on all ranks alike, whichever part is their own.
  Op& op = meet(OpKind::all_gather, group, u, whole);
  op.bytes = whole.bytes - own.bytes;
  Emitter::touch(op, whole, Role::dst, Mode::read_write);
}

void RankMoves::add_in_place(UnitId u, const Part& whole, std::int32_t group) {
  if (!work_.stages_collectives()) return add_met(u, whole, group);
  const Part met = stage(label(u, "added"), whole.bytes);
  emit_.move(OpKind::copy, LaneKind::d2h, u, whole, met);
  add_met(u, met, group);
  emit_.move(OpKind::copy, LaneKind::h2d, u, met, whole);
}

Part RankMoves::reduced_part(UnitId u, const Part& whole, const std::string& name, std::int32_t group) {
  const Part sum = device(name, own_part(whole, group).bytes);
  if (!work_.stages_collectives()) {
    reduce_parts(u, whole, sum, group);
    return sum;
  }
  const Part met = stage(name, whole.bytes);
  emit_.move(OpKind::copy, LaneKind::d2h, u, whole, met);
  reduce_parts(u, met, own_part(met, group), group);
  emit_.move(OpKind::copy, LaneKind::h2d, u, own_part(met, group), sum);
  return sum;
}

Part RankMoves::pack(const Part& from, const ParkedLayout& layout, const std::string& name, UnitId u, int mb) {
  const Part to = device(name + ".codes", layout.packed_bytes);
  for (const ParkedLayout::Values& v : layout.values)
    quantize(OpKind::quantize, u, from.slice(v.of.at, v.of.bytes), to.slice(v.packed.at, v.packed.bytes), v.numel, 1,
             parked_blocks(work_.activation_dtype))
        .micro_batch = mb;
  return to;
}

void RankMoves::unpack(const Part& packed, const Part& to, const ParkedLayout& layout, UnitId u, int mb) {
  for (const ParkedLayout::Values& v : layout.values)
    quantize(OpKind::dequantize, u, packed.slice(v.packed.at, v.packed.bytes), to.slice(v.of.at, v.of.bytes), v.numel,
             1, parked_blocks(work_.activation_dtype))
        .micro_batch = mb;
}

RankMoves::Pieces RankMoves::pieces_of(const Part& whole, const ParkedLayout* layout, const Part& packed) {
  Pieces pieces;
  if (layout == nullptr) {
    pieces.add(whole);
    return pieces;
  }
  pieces.add(packed);
  for (const SavedPiece& exact : layout->exact) pieces.add(whole.slice(exact.at, exact.bytes));
  return pieces;
}

/// Those from `at` on, to or from host memory.
void RankMoves::copy_pieces(LaneKind lane, UnitId u, int mb, const Pieces& pieces, std::uint64_t at, const Part& host) {
  Op& op = emit_.op(OpKind::copy, lane, u);
  op.micro_batch = mb;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < pieces.count; begin += pieces.parts[i++].bytes) {
    const Part& piece = pieces.parts[i];
    const std::uint64_t from = std::max(at, begin), to = std::min(at + host.bytes, begin + piece.bytes);
    if (from >= to) continue;
    const Part here = piece.slice(from - begin, to - from), there = host.slice(from - at, to - from);
    lane == LaneKind::d2h ? Emitter::move_also(op, here, there) : Emitter::move_also(op, there, here);
  }
}

RankParts::Parked RankMoves::park(const Part& from, Place place, const std::string& name, UnitId u, int mb,
                                  const ParkedLayout* layout, const Part& packed) {
  const std::string parked_name = name + ".parked";
  const Pieces pieces = pieces_of(from, layout, packed);
  if (place == Place::host) {
    const Part host = emit_.buffer(parked_name, Tier::host, pieces.bytes, Life::lasting);
    copy_pieces(LaneKind::d2h, u, mb, pieces, 0, host);
    return {place, host, layout};
  }
  const Part drive = emit_.buffer(parked_name, Tier::nvme, pieces.bytes, Life::lasting);
  const std::uint64_t chunk_bytes = schedule_.tile_numel * 4;
  emit_.at(drive).block_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(work_.block_bytes, chunk_bytes));
  for (std::uint64_t at = 0; at < pieces.bytes; at += chunk_bytes) {
    const std::uint64_t bytes = std::min(chunk_bytes, pieces.bytes - at);
    const Part host = stage(name + ".c" + std::to_string(at / chunk_bytes), bytes);
    copy_pieces(LaneKind::d2h, u, mb, pieces, at, host);
    // The drive moves whole pages.
    emit_.move(OpKind::write, LaneKind::nvme_write, u, host, drive.slice(at, bytes), -1, mb).bytes =
        padded_bytes(bytes);
  }
  return {place, drive, layout};
}

Part RankMoves::bring(const Parked& parked, const std::string& name, UnitId u, int mb, Life life, Part* packed) {
  const ParkedLayout* layout = parked.layout;
  const Part to = device(name, layout == nullptr ? parked.part.bytes : layout->whole_bytes, life);
  if (layout != nullptr) *packed = device(name + ".codes", layout->packed_bytes);
  const Pieces pieces = pieces_of(to, layout, layout == nullptr ? Part{} : *packed);
  if (parked.place == Place::host) {
    copy_pieces(LaneKind::h2d, u, mb, pieces, 0, parked.part);
    return to;
  }
  const std::uint64_t chunk_bytes = schedule_.tile_numel * 4;
  for (std::uint64_t at = 0; at < pieces.bytes; at += chunk_bytes) {
    const std::uint64_t bytes = std::min(chunk_bytes, pieces.bytes - at);
    const Part host = stage(name + ".c" + std::to_string(at / chunk_bytes), bytes);
    emit_.move(OpKind::read, LaneKind::nvme_read, u, parked.part.slice(at, bytes), host, -1, mb).bytes =
        padded_bytes(bytes);
    copy_pieces(LaneKind::h2d, u, mb, pieces, at, host);
  }
  return to;
}

void RankMoves::send(std::int32_t group, RankId to, const Part& part, const std::string& name, UnitId u, int mb,
                     const Part& gathered) {
  Part from = part;
  Op* reads = nullptr;
  if (work_.meets_in_host) {
    from = stage(name + ".sent", part.bytes);
    reads = &emit_.move(OpKind::copy, LaneKind::d2h, u, part, from, -1, mb);
    if (gathered.valid()) Emitter::touch(*reads, gathered, Role::parameters, Mode::read);
  }
  Op& op = emit_.send(group, to, from, u, mb);
  if (reads == nullptr && gathered.valid()) Emitter::touch(op, gathered, Role::parameters, Mode::read);
}

Part RankMoves::receive(std::int32_t group, RankId from, std::uint64_t bytes, const std::string& name, UnitId u,
                        int mb) {
  const Part to = work_.meets_in_host ? emit_.buffer(name + ".arrived", Tier::host, bytes, Life::lasting)
                                      : device(name, bytes, Life::lasting);
  emit_.receive(group, from, to, u, mb);
  return to;
}

/// Not where it is received: copies that are listed behind it would wait for another stage.
Part RankMoves::landed(const Part& arrived, const std::string& name, UnitId u, int mb) {
  if (!work_.meets_in_host) return arrived;
  const Part to = device(name, arrived.bytes, Life::lasting);
  emit_.move(OpKind::copy, LaneKind::h2d, u, arrived, to, -1, mb);
  return to;
}

std::string RankMoves::lot_label(UnitId u, const char* what, int lot) const {
  std::string name = label(u, what);
  if (!name.empty() && work_.lots > 1) name += ".lot" + std::to_string(lot);
  return name;
}

}  // namespace sluice
