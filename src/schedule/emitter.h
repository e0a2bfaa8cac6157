// Writes lanes, buffers and ops into a plan. Knows the plan's types and nothing about models.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "sluice/plan.h"

namespace sluice {

/// A range of a buffer that an op will touch.
struct Part {
  BufferId buffer = 0xffffffffu;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  Slot slot = Slot::current;

  bool valid() const { return buffer != 0xffffffffu; }
  Part slice(std::uint64_t from, std::uint64_t size) const { return {buffer, offset + from, size, slot}; }
  Part in_slot(Slot s) const { return {buffer, offset, bytes, s}; }
};

class Emitter {
 public:
  explicit Emitter(StepPlan& plan) : plan_(plan) {}

  /// The whole of a new buffer.
  Part buffer(std::string name, Tier tier, RankId rank, std::uint64_t bytes, Life life);
  Buffer& at(const Part& part) { return plan_.buffers[part.buffer]; }

  /// Append an op to its rank's lane; complete it with `touch`.
  Op& op(OpKind kind, LaneKind lane, RankId rank, UnitId unit = -1);

  static void touch(Op& op, const Part& part, Role role, Mode mode);

  /// src -> dst on a copy or drive lane; bytes are those of src.
  Op& move(OpKind kind, LaneKind lane, RankId rank, UnitId unit, const Part& src, const Part& dst, int tile = -1,
           int micro_batch = -1);

  /// One more piece for such an op, which begins as op() made it.
  static void move_also(Op& op, const Part& src, const Part& dst);

  StepPlan& plan() { return plan_; }

 private:
  StepPlan& plan_;
  std::map<std::pair<LaneKind, RankId>, LaneId> lanes_;
};

}  // namespace sluice
