#include "offload/plan/check.h"

#include <algorithm>
#include <map>

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
  std::vector<OpId> last(plan.groups.size(), no_op);
  std::vector<std::int32_t> met(plan.groups.size());
  for (OpId i = 0; i < plan.ops.size() && !findings.full(); ++i) {
    const Op& op = plan.ops[i];
    if (op.collective < 0) continue;
    if (op.group < 0 || static_cast<std::size_t>(op.group) >= plan.groups.size()) {
      findings.add(Kind::collective_order, i, no_op, no_buffer, describe(plan, i) + " has no group");
      continue;
    }
    const auto group = static_cast<std::size_t>(op.group);
    if (op.collective != met[group]++)
      findings.add(Kind::collective_order, i, last[group], no_buffer,
                   describe(plan, i) + " is collective " + std::to_string(op.collective) + " of its group, in turn " +
                       std::to_string(met[group] - 1));
    if (last[group] != no_op && plan.ops[last[group]].lane != op.lane)
      findings.add(Kind::collective_order, last[group], i, no_buffer,
                   describe(plan, last[group]) + " and " + describe(plan, i) + " meet one group on two lanes");
    last[group] = i;
    if (plan.lanes[op.lane].windowed)
      findings.add(Kind::collective_order, i, no_op, no_buffer, describe(plan, i) + " meets on a windowed lane");
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
