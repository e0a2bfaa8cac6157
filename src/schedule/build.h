// The builder: workload and schedule in, plan out.
#pragma once

#include <span>
#include <vector>

#include "offload/plan/finish.h"
#include "sluice/plan.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// Of the workload's rank: emit every op and buffer in program order, then finish() it (offsets, waits). The result is
/// legal by construction; check() proves it. Persistent buffers are the same for every kind, at the same offsets.
///   train     cyclic; forward and backward over all micro-batches in groups, updates as the schedule says
///   flush     applies the pending updates of update-ahead schedules
///   evaluate  forward only: losses of `micro_batches` micro-batches
///   decode    forward of one short sequence through the key-value caches to logits in host memory
StepPlan build_plan(PlanKind kind, const Workload& workload, const Schedule& schedule,
                    PackEffort effort = PackEffort::full);

/// Those of the first ranks of all stages.
std::vector<StepPlan> build_stages(PlanKind kind, const Workload& workload, const Schedule& schedule);

/// The plan of another rank of the same stage: its own ops, and buffers that lie as those of `alike` do.
StepPlan build_alike(const StepPlan& alike, const Workload& workload, const Schedule& schedule, RankId rank);

/// What is wrong with the plans of all stages, or of the only one: of a rank by itself (check), and of the ranks
/// together (check_world over a small world).
std::vector<Violation> prove(std::span<const StepPlan* const> stages, const Workload& workload,
                             const Schedule& schedule);
std::vector<Violation> prove(const StepPlan& plan, const Workload& workload, const Schedule& schedule);

/// The same without offsets and waits: enough to count what moves.
StepPlan build_ops(PlanKind kind, const Workload& workload, const Schedule& schedule);

/// The same without names, packed quickly, with the waits that others imply: enough to simulate, at a fraction of the
/// price.
StepPlan build_sketch(PlanKind kind, const Workload& workload, const Schedule& schedule);

/// Its buffers and when they are used: enough to count what memory it takes, at a fraction of that.
struct BufferLives {
  std::vector<Buffer> buffers;
  std::vector<Arena> arenas;
  Lives lives;
};
BufferLives build_lives(PlanKind kind, const Workload& workload, const Schedule& schedule);
/// The same into memory that is there already: thousands are looked at in a search.
void build_lives(PlanKind kind, const Workload& workload, const Schedule& schedule, BufferLives& into);

/// The same with offsets and without waits: enough to read arena sizes.
StepPlan build_layout(PlanKind kind, const Workload& workload, const Schedule& schedule);

}  // namespace sluice
