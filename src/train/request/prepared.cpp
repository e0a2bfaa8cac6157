// What is counted of a run that is prepared.
#include <algorithm>

#include "src/train/request/arrangement.h"
#include "src/train/request/prepare.h"

namespace sluice {

LinkBytes plan_link_bytes(const StepPlan& plan) {
  LinkBytes b;
  for (const Op& op : plan.ops) {
    switch (plan.lanes[op.lane].kind) {
      case LaneKind::h2d: b.h2d += op.bytes; break;
      case LaneKind::d2h: b.d2h += op.bytes; break;
      case LaneKind::nvme_read: b.nvme_read += op.bytes; break;
      case LaneKind::nvme_write: b.nvme_write += op.bytes; break;
      case LaneKind::comm: b.collective += op.bytes; break;
      case LaneKind::receive: b.message += op.bytes; break;
      default: break;
    }
  }
  return b;
}

LinkBytes step_link_bytes(const Prepared& run) {
  LinkBytes all;
  for (const StagePlans& stage : run.stages) all += plan_link_bytes(stage.main) * run.workload.ranks_of_stage();
  return all;
}

LinkBytes machine_link_bytes(const Prepared& run) {
  LinkBytes all;
  for (RankId s = 0; s < run.stages.size(); ++s) all += plan_link_bytes(run.stages[s].main) * run.ranks_here(s);
  return all;
}

std::uint64_t state_bytes(const Prepared& run) {
  std::uint64_t bytes = 0;
  for (const StagePlans& stage : run.stages)
    for (const Buffer& b : stage.main.buffers)
      if (b.holds == Holds::home && b.state != StateKind::gradient) bytes += b.bytes;
  return bytes * run.workload.ranks_of_stage();
}

std::uint64_t durable_slot_bytes(const Prepared& run) {
  std::uint64_t bytes = 0;
  for (RankId s = 0; s < run.stages.size(); ++s)
    for (const Buffer& b : run.stages[s].main.buffers)
      if (b.slots == 2) bytes += padded_bytes(b.bytes) * run.ranks_here(s);
  return bytes;
}

std::uint64_t Prepared::ranks_here(RankId stage) const {
  const int first = stage * workload.ranks_of_stage(),
            end = std::min(first + workload.ranks_of_stage(), ranks_of_machine(config));
  return static_cast<std::uint64_t>(std::max(0, end - first));
}

Arena Prepared::arena_of_machine(Tier tier) const {
  Arena all{tier};
  for (RankId r = 0; r < ranks_of_machine(config); ++r) {
    const Arena& rank = *stage_of_rank(r).main.arena(tier);
    if (tier == Tier::device) {
      if (rank.arena_bytes > all.arena_bytes) all = rank;
      continue;
    }
    all.budget_bytes += rank.budget_bytes > 1 ? rank.budget_bytes : 0;
    all.arena_bytes += rank.arena_bytes;
    all.max_live_bytes += rank.max_live_bytes;
    all.packing = std::max(all.packing, rank.packing);
  }
  return all;
}

}  // namespace sluice
