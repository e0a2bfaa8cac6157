#include "src/schedule/emitter.h"

#include "sluice/status.h"

namespace sluice {

Part Emitter::buffer(std::string name, Tier tier, RankId rank, std::uint64_t bytes, Life life) {
  Buffer b;
  b.name = std::move(name);
  b.tier = tier;
  b.rank = rank;
  b.bytes = bytes;
  b.life = life;
  plan_.buffers.push_back(std::move(b));
  return {static_cast<BufferId>(plan_.buffers.size() - 1), 0, bytes, Slot::current};
}

Op& Emitter::op(OpKind kind, LaneKind lane, RankId rank, UnitId unit) {
  auto [it, added] = lanes_.try_emplace({lane, rank}, static_cast<LaneId>(plan_.lanes.size()));
  if (added) plan_.lanes.push_back({lane, rank, lane == LaneKind::nvme_read || lane == LaneKind::nvme_write});
  Op o{};
  o.kind = kind;
  o.lane = it->second;
  o.unit = unit;
  plan_.ops.push_back(std::move(o));
  return plan_.ops.back();
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
