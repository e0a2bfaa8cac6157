#include "src/schedule/emitter.h"

#include "sluice/status.h"

namespace sluice {

Part Emitter::buffer(std::string name, Tier tier, RankId rank, std::uint64_t bytes, Life life) {
  Buffer b;
  if (has_names()) b.name = std::move(name);
  b.tier = tier;
  b.rank = rank;
  b.bytes = bytes;
  b.life = life;
  plan_.buffers.push_back(std::move(b));
  return {static_cast<BufferId>(plan_.buffers.size() - 1), 0, bytes, Slot::current};
}

LaneId Emitter::lane_of(LaneKind kind, RankId rank) {
  const std::size_t at = rank * lane_names.size() + static_cast<std::size_t>(kind);
  if (lanes_.size() <= at) lanes_.resize((rank + std::size_t{1}) * lane_names.size(), -1);
  if (lanes_[at] < 0) {
    lanes_[at] = static_cast<std::int32_t>(plan_.lanes.size());
    plan_.lanes.push_back({kind, rank, kind == LaneKind::nvme_read || kind == LaneKind::nvme_write});
  }
  return static_cast<LaneId>(lanes_[at]);
}

Op& Emitter::op(OpKind kind, LaneKind lane, RankId rank, UnitId unit) {
  const LaneId id = lane_of(lane, rank);
  Op* o = &scratch_;
  if (has_ops()) {
    o = &plan_.ops.emplace_back();
  } else {
    note_lives();
    std::vector<Access> accesses = std::move(scratch_.accesses);
    accesses.clear();
    scratch_ = Op{};
    scratch_.accesses = std::move(accesses);
    ++lives_.ops;
  }
  o->kind = kind;
  o->lane = id;
  o->unit = unit;
  return *o;
}

void Emitter::note_lives() {
  lives_.first.resize(plan_.buffers.size(), no_op);
  lives_.last.resize(plan_.buffers.size(), 0);
  for (const Access& a : scratch_.accesses) {
    if (lives_.first[a.buffer] == no_op) lives_.first[a.buffer] = lives_.ops - 1;
    lives_.last[a.buffer] = lives_.ops - 1;
  }
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

Op& Emitter::move(OpKind kind, LaneKind lane, RankId rank, UnitId unit, const Part& src, const Part& dst, int tile,
                  int micro_batch) {
  Op& o = op(kind, lane, rank, unit);
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
