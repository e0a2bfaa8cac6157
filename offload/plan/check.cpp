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

std::string arena_name(const Arena& a) {
  return std::string(tier_names[static_cast<std::size_t>(a.tier)]) + " arena of rank " + std::to_string(a.rank);
}

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
    const Arena* arena = plan.arena(b.tier, b.rank);
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

void check_collectives(Findings& findings) {
  const StepPlan& plan = findings.plan();
  std::map<std::int32_t, std::vector<OpId>> meetings;
  std::map<std::tuple<std::int32_t, LaneKind, RankId>, std::vector<OpId>> sequences;
  for (OpId i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (op.collective < 0) continue;
    meetings[op.collective].push_back(i);
    sequences[{op.group, plan.lanes[op.lane].kind, plan.lanes[op.lane].rank}].push_back(i);
  }
  for (const auto& [id, ops] : meetings) {
    const Op& op = plan.ops[ops[0]];
    const std::string name = "collective " + std::to_string(id) + " of " + describe(plan, ops[0]);
    if (op.group < 0 || static_cast<std::size_t>(op.group) >= plan.groups.size()) {
      findings.add(Kind::collective_order, ops[0], no_op, no_buffer, name + " has no group");
      continue;
    }
    std::vector<RankId> here, expected = plan.groups[op.group];
    for (const OpId i : ops) {
      here.push_back(plan.lanes[plan.ops[i].lane].rank);
      if (plan.ops[i].group != op.group || plan.ops[i].kind != op.kind)
        findings.add(Kind::collective_order, ops[0], i, no_buffer,
                     name + " differs from its partner " + describe(plan, i));
    }
    std::sort(here.begin(), here.end());
    std::sort(expected.begin(), expected.end());
    if (here != expected)
      findings.add(Kind::deadlock, ops[0], no_op, no_buffer,
                   name + " is met by " + std::to_string(here.size()) + " ops, its group has " +
                       std::to_string(expected.size()) + " ranks");
  }
  for (const auto& [key, ops] : sequences) {
    const auto& [group, lane, rank] = key;
    const auto first = sequences.lower_bound({group, lane, 0});
    const std::vector<OpId>& other = first->second;
    for (std::size_t i = 0; i < std::min(ops.size(), other.size()); ++i)
      if (plan.ops[ops[i]].collective != plan.ops[other[i]].collective) {
        findings.add(Kind::collective_order, other[i], ops[i], no_buffer,
                     describe(plan, other[i]) + " and " + describe(plan, ops[i]) +
                         " are in the same turn of their group but not the same collective");
        break;
      }
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
      findings.add(Kind::deadlock, op, no_op, no_buffer,
                   describe(plan, op) + " never finishes: the other ranks of its collective do not come to it");
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
