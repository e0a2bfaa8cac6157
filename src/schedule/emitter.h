// Writes lanes, buffers and ops into a plan. Knows the plan's types and nothing about models.
#pragma once

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "offload/plan/finish.h"
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

/// How much of a plan is written down. whole: all of it. bare: buffers have no names; enough to simulate. lives:
/// buffers and their first and last op alone, without names and ops; enough to count bytes.
enum class Detail : std::uint8_t { whole, bare, lives };

class Emitter {
 public:
  /// `room`, of Detail::lives, is memory to fill.
  explicit Emitter(StepPlan& plan, Detail detail = Detail::whole, Lives room = {})
      : plan_(plan), detail_(detail), lives_(std::move(room)) {
    lives_.first.clear();
    lives_.last.clear();
    lives_.ops = 0;
  }

  bool has_names() const { return detail_ == Detail::whole; }
  bool has_ops() const { return detail_ != Detail::lives; }
  /// Of Detail::lives, when all ops are written.
  Lives take_lives();

  /// The whole of a new buffer.
  Part buffer(std::string_view name, Tier tier, std::uint64_t bytes, Life life);
  Buffer& at(const Part& part) { return plan_.buffers[part.buffer]; }

  /// Append an op to its lane; complete it with `touch`, before the next one is appended.
  Op& op(OpKind kind, LaneKind lane, UnitId unit = -1);
  /// The next collective of a group of the plan, on the group's lane or, where another is named, there.
  Op& collective(OpKind kind, std::int32_t group, UnitId unit = -1, LaneKind lane = LaneKind::comm);
  /// The same on the lane of the device.
  Op& device_collective(OpKind kind, std::int32_t group, UnitId unit);
  /// The next message to, or from, a member of a group, on the group's lane for that.
  Op& send(std::int32_t group, RankId to, const Part& part, UnitId unit, int micro_batch = -1);
  void receive(std::int32_t group, RankId from, const Part& part, UnitId unit, int micro_batch = -1);

  static void touch(Op& op, const Part& part, Role role, Mode mode);

  /// src -> dst on a copy or drive lane; bytes are those of src.
  Op& move(OpKind kind, LaneKind lane, UnitId unit, const Part& src, const Part& dst, int tile = -1,
           int micro_batch = -1);

  /// One more piece for such an op, which begins as op() made it.
  static void move_also(Op& op, const Part& src, const Part& dst);

  StepPlan& plan() { return plan_; }
  const StepPlan& plan() const { return plan_; }

 private:
  Op& append(OpKind kind, LaneId lane, UnitId unit);
  Op& numbered(Op& op, std::int32_t group);
  Op& message(OpKind kind, std::int32_t group, RankId peer, const Part& part, UnitId unit, int micro_batch);
  LaneId lane_of(LaneKind kind, std::int32_t group);
  void note_lives();

  StepPlan& plan_;
  Detail detail_;
  std::vector<std::int32_t> lanes_;  ///< by kind, then by group: index in the plan, -1 for none yet
  std::vector<std::int32_t> met_;    ///< by group: collectives so far
  std::map<std::pair<LaneId, RankId>, std::int32_t> messages_;  ///< by lane and peer: so far
  Op scratch_{};                                                ///< Detail::lives: the op that is being written
  Lives lives_;
};

}  // namespace sluice
