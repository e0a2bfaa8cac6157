#include <bit>
#include <cstdint>

#include "offload/plan/finish.h"
#include "offload/plan/world.h"

namespace sluice {
namespace {

/// 64-bit words, one after the other, multiplied and folded: no byte order, no padding, no pointers.
class WordHash {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 32;
  }
  template <class E>
  requires std::is_enum_v<E>
  void add(E value) { add(static_cast<std::uint64_t>(value)); }
  void add(double value) { add(std::bit_cast<std::uint64_t>(value)); }
  void add(std::int32_t value) { add(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))); }
  void add(bool value) { add(std::uint64_t{value}); }
  void add(std::uint32_t value) { add(std::uint64_t{value}); }
  void add(std::uint16_t value) { add(std::uint64_t{value}); }
  void add(std::uint8_t value) { add(std::uint64_t{value}); }
  void add(const std::string& text) {
    add(static_cast<std::uint64_t>(text.size()));
    for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
  }
  std::uint64_t finish() const {
    const std::uint64_t mixed = (state_ ^ state_ >> 29) * 0xBF58476D1CE4E5B9ull;
    return mixed ^ mixed >> 32;
  }

 private:
  std::uint64_t state_ = 0x736c75696365ull;
};

template <class... T>
void add_all(WordHash& h, const T&... values) {
  (h.add(values), ...);
}

template <class T>
void add_size(WordHash& h, const std::vector<T>& v) {
  h.add(static_cast<std::uint64_t>(v.size()));
}

void add_quantization(WordHash& h, const Quantization& q) {
  add_all(h, q.bits, static_cast<std::int32_t>(q.block), q.format);
}

void add_op(WordHash& h, const Op& op) {
  add_all(h, op.kind, op.lane, op.unit, op.micro_batch, op.chunk, op.step, op.tile, op.collective, op.group, op.peer,
          op.pieces, op.accumulate, op.sums, op.is_replica, op.element, op.numel, op.bytes, op.flop, op.cost);
  add_quantization(h, op.quantization);
  add_size(h, op.accesses);
  for (const Access& a : op.accesses) add_all(h, a.buffer, a.offset, a.bytes, a.role, a.mode, a.slot);
  add_size(h, op.waits);
  for (const Wait& w : op.waits) add_all(h, w.op, w.previous_iteration);
}

}  // namespace

std::uint64_t plan_hash(const StepPlan& plan) {
  WordHash h;
  add_all(h, plan_schema_version, plan.kind, plan.cyclic);
  add_size(h, plan.topology.axes);
  for (const Axis& axis : plan.topology.axes) add_all(h, axis.name, axis.size, axis.stride);
  for (const RankId c : plan.topology.coordinates) h.add(c);
  add_size(h, plan.units);
  for (const std::string& name : plan.units) h.add(name);
  add_size(h, plan.groups);
  for (const AxisSet group : plan.groups) h.add(group);
  add_size(h, plan.cost_keys);
  for (const std::string& key : plan.cost_keys) h.add(key);
  add_size(h, plan.lanes);
  for (const Lane& l : plan.lanes) add_all(h, l.kind, l.windowed, l.group);
  add_size(h, plan.buffers);
  for (const Buffer& b : plan.buffers)
    add_all(h, b.name, b.tier, b.bytes, b.life, b.slots, b.behind, b.offset, b.holds, b.state, b.unit, b.block_bytes);
  add_size(h, plan.ops);
  for (const Op& op : plan.ops) add_op(h, op);
  add_size(h, plan.arenas);
  for (const Arena& a : plan.arenas) add_all(h, a.tier, a.budget_bytes, a.arena_bytes, a.max_live_bytes);
  return h.finish();
}

std::uint64_t plan_signature(const StepPlan& plan) {
  WordHash h;
  add_all(h, plan_schema_version, plan.kind, plan.cyclic);
  add_size(h, plan.topology.axes);
  for (const Axis& axis : plan.topology.axes) add_all(h, axis.name, axis.size, axis.stride);
  add_size(h, plan.groups);
  for (const AxisSet group : plan.groups) h.add(group);
  for (const Lane& l : plan.lanes) add_all(h, l.kind, l.windowed, l.group);
  for (const Buffer& b : plan.buffers) add_all(h, b.tier, b.bytes, b.slots, b.behind, b.offset);
  for (const Op& op : plan.ops) {
    add_all(h, op.kind, op.lane, op.unit, op.micro_batch, op.chunk, op.step, op.tile, op.collective, op.group, op.peer,
            op.pieces, op.accumulate, op.sums, op.element, op.numel, op.bytes);
    add_quantization(h, op.quantization);
    add_size(h, op.waits);
    for (const Wait& w : op.waits) add_all(h, w.op, w.previous_iteration);
  }
  return h.finish();
}

std::string describe(const StepPlan& plan, OpId id) {
  if (id >= plan.ops.size()) return "#" + std::to_string(id) + " (no such op)";
  const Op& op = plan.ops[id];
  const Lane& lane = plan.lanes[op.lane];
  std::string text = "#" + std::to_string(id) + " ";
  if (plan.topology.ranks() > 1) text += "rank " + std::to_string(plan.topology.rank()) + " ";
  text += lane_names[static_cast<std::size_t>(lane.kind)];
  text += " ";
  text += op_names[static_cast<std::size_t>(op.kind)];
  if (op.unit >= 0 && static_cast<std::size_t>(op.unit) < plan.units.size()) text += " " + plan.units[op.unit];
  if (op.micro_batch >= 0) text += " mb" + std::to_string(op.micro_batch);
  if (op.peer >= 0) text += (op.kind == OpKind::send ? " to " : " from ") + std::to_string(op.peer);
  if (op.tile >= 0) text += " tile " + std::to_string(op.tile);
  return text;
}

}  // namespace sluice
