#include "offload/plan/check.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice {
namespace planning {

using Kind = Violation::Kind;

std::string Findings::use(const Access& a, OpId op) const {
  const char* what = a.mode == Mode::read ? "read of " : a.mode == Mode::write ? "write of " : "update of ";
  return what + plan_.buffers[a.buffer].name + " by " + describe(plan_, op);
}

namespace {

constexpr BufferId no_buffer = 0xffffffffu;

std::string arena_name(const Arena& a) { return std::string(tier_names[static_cast<std::size_t>(a.tier)]) + " arena"; }

void check_access_place(Findings& findings, OpId op, const Access& a) {
  const Buffer& b = findings.plan().buffers[a.buffer];
  if (a.slot == Slot::next && b.slots != 2)
    findings.add(Kind::bad_slot, op, no_op, a.buffer,
                 findings.use(a, op) + " means slot next of a buffer with one slot");
  if (a.slot == Slot::current && b.slots == 2 && writes(a))
    findings.add(Kind::durable_overwrite, op, no_op, a.buffer,
                 findings.use(a, op) + " overwrites the current slot of a durable buffer");
  if (a.offset > b.bytes || a.bytes > b.bytes - a.offset)
    findings.add(
        Kind::out_of_bounds, op, no_op, a.buffer,
        findings.use(a, op) + " ends at byte " + std::to_string(a.offset + a.bytes) + " of " + std::to_string(b.bytes));
}

}  // namespace

void check_places(Findings& findings) {
  const StepPlan& plan = findings.plan();
  for (const Arena& a : plan.arenas)
    if (a.budget_bytes != 0 && a.arena_bytes > a.budget_bytes)
      findings.add(Kind::over_budget, no_op, no_op, no_buffer,
                   arena_name(a) + " needs " + std::to_string(a.arena_bytes) + " bytes, its budget is " +
                       std::to_string(a.budget_bytes));
  for (BufferId id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& b = plan.buffers[id];
    const Arena* arena = plan.arena(b.tier);
    if (b.slots != 1 && b.slots != 2)
      findings.add(Kind::bad_slot, no_op, no_op, id, b.name + " has " + std::to_string(b.slots) + " slots");
    else if (!arena || b.offset > arena->arena_bytes || footprint_bytes(b) > arena->arena_bytes - b.offset)
      findings.add(Kind::out_of_bounds, no_op, no_op, id, b.name + " ends beyond its arena");
    else if (b.offset % buffer_alignment_bytes != 0)
      findings.add(Kind::out_of_bounds, no_op, no_op, id, b.name + " lies at an unaligned offset");
  }
  for (OpId i = 0; i < plan.ops.size() && !findings.full(); ++i)
    for (const Access& a : plan.ops[i].accesses) check_access_place(findings, i, a);
}

/// What other ranks are told about the collectives of a group: that they come one after the other on one lane.
void check_collectives(Findings& findings) {
  const StepPlan& plan = findings.plan();
  /// Collectives of a group, or messages to or from one of its members.
  struct Turns {
    OpId last = no_op;
    std::int32_t next = 0;
  };
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, Turns> turns;
  std::map<std::pair<std::int32_t, int>, OpId> on_lane;  // by group, and whether it meets, sends or receives
  const auto add = [&](OpId first, OpId second, const std::string& text) {
    findings.add(Kind::collective_order, first, second, no_buffer, text);
  };
  const auto queues = std::ranges::count_if(plan.lanes, is_of_device_collectives);
  if (queues > 1) add(no_op, no_op, "the collectives of the device are on " + std::to_string(queues) + " lanes");
  for (OpId i = 0; i < plan.ops.size() && !findings.full(); ++i) {
    const Op& op = plan.ops[i];
    const bool is_message = sluice::is_message(op.kind);
    if (op.collective < 0 && !is_message) continue;
    // The gradients that control comes behind are not what it gives other ranks.
    const bool on_device = std::ranges::any_of(op.accesses, [&](const Access& a) {
      return plan.buffers[a.buffer].tier == Tier::device && !(op.kind == OpKind::control && a.role == Role::gradient);
    });
    if (queues > 0 && on_device != is_of_device_collectives(plan.lanes[op.lane]))
      add(i, no_op,
          describe(plan, i) + (on_device ? " meets in device memory, and not on the device's one lane for that"
                                         : " is on the lane of collectives in device memory, and meets elsewhere"));
    if (op.group < 0 || static_cast<std::size_t>(op.group) >= plan.groups.size()) {
      add(i, no_op, describe(plan, i) + " has no group");
      continue;
    }
    const AxisSet axes = plan.groups[static_cast<std::size_t>(op.group)];
    if (is_message && (op.peer < 0 || op.peer >= plan.topology.size(axes) || op.peer == plan.topology.position(axes)))
      add(i, no_op, describe(plan, i) + " has no other member of its group at the other end");
    Turns& turn = turns[{op.group, op.peer, op.kind == OpKind::send}];
    if (op.collective != turn.next++)
      add(i, turn.last,
          describe(plan, i) + (sluice::is_message(op.kind) ? " is message " : " is collective ") +
              std::to_string(op.collective) + " of its group, in turn " + std::to_string(turn.next - 1));
    turn.last = i;
    const int use = op.kind == OpKind::send ? 1 : op.kind == OpKind::receive ? 2 : 0;
    const OpId before = on_lane.try_emplace({op.group, use}, i).first->second;
    if (plan.ops[before].lane != op.lane)
      add(before, i, describe(plan, before) + " and " + describe(plan, i) + " meet one group on two lanes");
    for (const int other : use == 0 ? std::vector<int>{1, 2} : std::vector<int>{0})
      if (const auto found = on_lane.find({op.group, other}); found != on_lane.end())
        add(found->second, i,
            describe(plan, found->second) + " and " + describe(plan, i) +
                " use one group for messages and collectives");
    if (plan.lanes[op.lane].windowed) add(i, no_op, describe(plan, i) + " meets on a windowed lane");
  }
}

void check_progress(Findings& findings, const Program& program, const HappensBefore& order) {
  const StepPlan& plan = findings.plan();
  for (const HappensBefore::Stuck& s : order.stuck()) {
    const OpId op = program.op(s.node);
    if (s.waits_for != no_node)
      findings.add(Kind::deadlock, op, program.op(s.waits_for), no_buffer,
                   describe(plan, op) + " never starts: it waits for " + describe(plan, program.op(s.waits_for)));
    else
      findings.add(Kind::deadlock, op, no_op, no_buffer, describe(plan, op) + " never finishes");
  }
}

}  // namespace planning

std::vector<Violation> check(const StepPlan& plan, std::size_t limit) {
  using namespace planning;
  Findings findings(plan, limit);
  check_places(findings);
  check_collectives(findings);
  if (findings.full()) return findings.take();
  const Program program(plan, steady_iterations(plan));
  const HappensBefore order(program);
  check_progress(findings, program, order);
  // Without progress there is no order to judge accesses by.
  if (!order.complete()) return findings.take();
  check_accesses(findings, program, order);
  check_sharing(findings, program, order);
  check_durability(findings, program, order);
  return findings.take();
}

}  // namespace sluice
