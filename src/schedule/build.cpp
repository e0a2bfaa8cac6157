#include "src/schedule/build.h"

#include <utility>
#include <vector>

#include "offload/parallel.h"
#include "offload/plan/finish.h"
#include "offload/plan/world.h"
#include "sluice/status.h"
#include "src/schedule/driver.h"

namespace sluice {
namespace {

StepPlan frame(PlanKind kind, const Workload& w, const Schedule& s, Detail detail) {
  StepPlan plan;
  plan.kind = kind;
  // Iterations follow each other without a barrier; a flush is one, of what other plans have left.
  plan.cyclic = kind != PlanKind::flush;
  plan.topology = w.topology;
  if (detail == Detail::whole)
    for (const UnitSpec& u : w.model->units) plan.units.push_back(u.name);
  for (Tier t : {Tier::device, Tier::host, Tier::nvme})
    plan.arenas.push_back({t, w.budget_bytes[static_cast<std::size_t>(t)], 0, 0});
  const AxisSet all = w.topology.all_axes();
  // sharding_group, control_group, replica_group, close_group, tensor_group, copy_group, context_group, far_group
  if (w.ranks() > 1)
    plan.groups = {shard_axes, all, replica_axes, close_axes, tensor_axes, copy_axes, context_axes, far_axes};
  if (w.stages() == 1) return plan;
  // Two of messages for each chunk, two for a tied matrix, and that of barriers.
  plan.groups.insert(plan.groups.end(), static_cast<std::size_t>(2 * s.pipeline.chunks + 2), pipeline_axes);
  plan.groups.push_back(all);
  return plan;
}

StepPlan emit(PlanKind kind, const Workload& w, const Schedule& s, Detail detail = Detail::whole) {
  StepPlan plan = frame(kind, w, s, detail);
  Driver(plan, kind, w, s, detail).run();
  return plan;
}

}  // namespace

StepPlan build_plan(PlanKind kind, const Workload& workload, const Schedule& schedule, PackEffort effort) {
  StepPlan plan = emit(kind, workload, schedule);
  finish(plan, effort);
  return plan;
}

StepPlan build_alike(const StepPlan& alike, const Workload& workload, const Schedule& schedule, RankId rank) {
  Workload w = workload;
  w.topology = workload.topology.at(rank);
  StepPlan plan = emit(alike.kind, w, schedule);
  SLUICE_CHECK(plan.buffers.size() == alike.buffers.size(), "rank %u has %zu buffers, another %zu", rank,
               plan.buffers.size(), alike.buffers.size());
  plan.buffers = alike.buffers;
  plan.arenas = alike.arenas;
  derive_waits(plan);
  return plan;
}

std::vector<Violation> prove(std::span<const StepPlan* const> stages, const Workload& workload,
                             const Schedule& schedule) {
  if (workload.ranks() == 1) return check(*stages.front());
  // Programs of many stages are gigabytes: each other rank's is there only while it is looked at.
  const std::vector<Topology> members = small_world(workload.topology, pipeline_axes);
  std::vector<std::vector<Violation>> of_members(members.size());
  parallel_for(members.size(), [&](std::size_t m) {
    const StepPlan& stage = *stages[members[m].position(pipeline_axes)];
    if (members[m] == stage.topology) {
      of_members[m] = check(stage);
      return;
    }
    const StepPlan member = build_alike(stage, workload, schedule, members[m].rank());
    of_members[m] = check(member);
    if (of_members[m].empty() && plan_signature(member) != plan_signature(stage))
      of_members[m].push_back({Violation::Kind::collective_order, no_op, no_op, 0xffffffffu,
                               "ranks " + std::to_string(stage.topology.rank()) + " and " +
                                   std::to_string(members[m].rank()) + " do not run alike"});
  });
  for (const std::vector<Violation>& found : of_members)
    if (!found.empty()) return found;
  return check_world(stages);
}

std::vector<Violation> prove(const StepPlan& plan, const Workload& workload, const Schedule& schedule) {
  const StepPlan* const only = &plan;
  return prove(std::span(&only, 1), workload, schedule);
}

std::vector<StepPlan> build_stages(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  std::vector<StepPlan> plans(workload.stages());
  parallel_for(plans.size(), [&](std::size_t s) {
    plans[s] = build_plan(kind, at_stage(workload, static_cast<RankId>(s)), schedule);
  });
  return plans;
}

StepPlan build_ops(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  return emit(kind, workload, schedule);
}

StepPlan build_sketch(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  StepPlan plan = emit(kind, workload, schedule, Detail::bare);
  pack(plan, PackEffort::sketch);
  derive_hazards(plan);
  return plan;
}

void build_lives(PlanKind kind, const Workload& workload, const Schedule& schedule, BufferLives& into) {
  StepPlan plan = frame(kind, workload, schedule, Detail::lives);
  plan.buffers = std::move(into.buffers);
  plan.buffers.clear();
  Driver driver(plan, kind, workload, schedule, Detail::lives, std::move(into.lives));
  driver.run();
  Lives lives = driver.take_lives();  // which looks at the buffers once more
  into = {std::move(plan.buffers), std::move(plan.arenas), std::move(lives)};
}

BufferLives build_lives(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  BufferLives lives;
  build_lives(kind, workload, schedule, lives);
  return lives;
}

StepPlan build_layout(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  StepPlan plan = emit(kind, workload, schedule);
  pack(plan);
  return plan;
}

}  // namespace sluice
