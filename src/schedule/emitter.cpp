#include "src/schedule/emitter.h"

#include <algorithm>

#include "sluice/status.h"

namespace sluice {

Part Emitter::buffer(std::string_view name, Tier tier, std::uint64_t bytes, Life life) {
  Buffer& b = plan_.buffers.emplace_back();
  if (has_names()) b.name = name;
  b.tier = tier;
  b.bytes = bytes;
  b.life = life;
  if (!has_ops()) lives_.add(life);
  return {static_cast<BufferId>(plan_.buffers.size() - 1), 0, bytes, Slot::current};
}

/// Of those between ranks each group has its own, and a device one for all (group -1).
LaneId Emitter::lane_of(LaneKind kind, std::int32_t group) {
  const bool is_of_group = kind == LaneKind::comm || kind == LaneKind::send || kind == LaneKind::receive;
  const std::size_t at =
      static_cast<std::size_t>(kind) + (is_of_group ? static_cast<std::size_t>(group + 1) : 0) * lane_names.size();
  if (lanes_.size() <= at) lanes_.resize(at + 1, -1);
  if (lanes_[at] < 0) {
    lanes_[at] = static_cast<std::int32_t>(plan_.lanes.size());
    plan_.lanes.push_back({kind, kind == LaneKind::nvme_read || kind == LaneKind::nvme_write || kind == LaneKind::save,
                           is_of_group ? group : -1});
  }
  return static_cast<LaneId>(lanes_[at]);
}

Op& Emitter::op(OpKind kind, LaneKind lane, UnitId unit) { return append(kind, lane_of(lane, -1), unit); }

Op& Emitter::collective(OpKind kind, std::int32_t group, UnitId unit, LaneKind lane) {
  return numbered(append(kind, lane_of(lane, group), unit), group);
}

Op& Emitter::device_collective(OpKind kind, std::int32_t group, UnitId unit) {
  return numbered(append(kind, lane_of(LaneKind::comm, -1), unit), group);
}

Op& Emitter::numbered(Op& op, std::int32_t group) {
  met_.resize(std::max<std::size_t>(met_.size(), static_cast<std::size_t>(group) + 1));
  op.group = group;
  op.collective = met_[static_cast<std::size_t>(group)]++;
  return op;
}

Op& Emitter::message(OpKind kind, std::int32_t group, RankId peer, const Part& part, UnitId unit, int micro_batch) {
  const LaneId lane = lane_of(kind == OpKind::send ? LaneKind::send : LaneKind::receive, group);
  Op& op = append(kind, lane, unit);
  op.micro_batch = micro_batch;
  op.group = group;
  op.peer = peer;
  op.collective = messages_[{lane, peer}]++;
  op.bytes = part.bytes;
  return op;
}

Op& Emitter::send(std::int32_t group, RankId to, const Part& part, UnitId unit, int micro_batch) {
  Op& op = message(OpKind::send, group, to, part, unit, micro_batch);
  touch(op, part, Role::src, Mode::read);
  return op;
}

void Emitter::receive(std::int32_t group, RankId from, const Part& part, UnitId unit, int micro_batch) {
  touch(message(OpKind::receive, group, from, part, unit, micro_batch), part, Role::dst, Mode::write);
}

Op& Emitter::append(OpKind kind, LaneId lane, UnitId unit) {
  Op* o = &scratch_;
  if (has_ops()) {
    o = &plan_.ops.emplace_back();
  } else {
    note_lives();
    scratch_.accesses.clear();
    scratch_.bytes = 0;
    ++lives_.ops;
  }
  o->kind = kind;
  o->lane = lane;
  o->unit = unit;
  return *o;
}

void Emitter::note_lives() {
  for (const Access& a : scratch_.accesses) lives_.use(plan_.buffers[a.buffer].life, a, lives_.ops - 1);
}

Lives Emitter::take_lives() {
  note_lives();
  return std::move(lives_);
}

void Emitter::touch(Op& op, const Part& part, Role role, Mode mode) {
  SLUICE_CHECK(part.valid(), "operand %d of %s of unit %d", static_cast<int>(role),
               op_names[static_cast<std::size_t>(op.kind)], op.unit);
  op.accesses.push_back({part.buffer, part.offset, part.bytes, role, mode, part.slot});
}

Op& Emitter::move(OpKind kind, LaneKind lane, UnitId unit, const Part& src, const Part& dst, int tile,
                  int micro_batch) {
  Op& o = op(kind, lane, unit);
  o.tile = tile;
  o.micro_batch = micro_batch;
  move_also(o, src, dst);
  return o;
}

void Emitter::move_also(Op& op, const Part& src, const Part& dst) {
  op.bytes += src.bytes;
  touch(op, src, Role::src, Mode::read);
  touch(op, dst, Role::dst, Mode::write);
}

}  // namespace sluice
