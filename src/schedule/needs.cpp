#include "src/schedule/needs.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "offload/parallel.h"
#include "src/schedule/build.h"
#include "src/schedule/stages.h"

namespace sluice {
namespace {

TierBytes larger(const TierBytes& a, const TierBytes& b) {
  return {std::max(a.device, b.device), std::max(a.host, b.host), std::max(a.nvme, b.nvme)};
}

/// That a run uses: those of its steps first.
struct PlansOfRun {
  PlansOfRun(const Workload& w, const Schedule& s) : ahead(s.ahead()), plans{{w.main_kind(), &s}} {
    if (w.inference) return;
    if (s.both_orders && !s.update_ahead) plans.emplace_back(w.main_kind(), &ahead);
    of_steps = plans.size();
    plans.emplace_back(PlanKind::evaluate, &s);
    if (s.flushes_all()) plans.emplace_back(PlanKind::flush, &ahead);
    if (s.mixes()) plans.emplace_back(PlanKind::flush, &s);
  }
  Schedule ahead;
  std::vector<std::pair<PlanKind, const Schedule*>> plans;
  std::size_t of_steps = 1;
};

TierBytes packed(BufferLives& b) {
  pack(b.buffers, b.arenas, b.lives, PackEffort::full);
  TierBytes n;
  for (const Arena& a : b.arenas) n.of(a.tier) = std::max(n.of(a.tier), a.arena_bytes);
  return n;
}

TierBytes most_alive(const BufferLives& b) {
  const std::size_t tiers = tier_names.size();
  // By tier: bytes that come and go behind each op.
  std::vector<std::vector<std::int64_t>> change(tiers, std::vector<std::int64_t>(b.lives.ops + 1));
  for (BufferId id = 0; id < b.buffers.size(); ++id) {
    const Buffer& buffer = b.buffers[id];
    std::vector<std::int64_t>& at = change[static_cast<std::size_t>(buffer.tier)];
    const auto bytes = static_cast<std::int64_t>(footprint_bytes(buffer));
    const OpId first = b.lives.first[id], last = b.lives.last[id];
    if (is_transient(buffer.life)) {
      at[first] += bytes;
      at[last + 1] -= bytes;
    } else if (buffer.life == Life::persistent) {
      at[0] += bytes;
    } else {
      if (last != no_op) at[0] += bytes, at[last + 1] -= bytes;
      if (first != no_op) at[first] += bytes;
    }
  }
  TierBytes most;
  for (std::size_t tier = 0; tier < tiers; ++tier) {
    std::int64_t live = 0, peak = 0;
    for (const std::int64_t c : change[tier]) peak = std::max(peak, live += c);
    most.of(static_cast<Tier>(tier)) = static_cast<std::uint64_t>(peak);
  }
  return most;
}

}  // namespace

bool within(const TierBytes& needs, const std::array<std::uint64_t, 3>& budget_bytes, double margin) {
  for (const Tier t : {Tier::device, Tier::host, Tier::nvme}) {
    const std::uint64_t budget = budget_bytes[static_cast<std::size_t>(t)];
    if (budget != 0 && static_cast<double>(needs.of(t)) * margin > static_cast<double>(budget)) return false;
  }
  return true;
}

std::vector<TierBytes> stage_needs(const Workload& workload, const Schedule& schedule) {
  const PlansOfRun run(workload, schedule);
  const std::size_t count = run.plans.size();
  std::vector<TierBytes> of_plans(workload.stages() * count), needs(workload.stages());
  parallel_for(of_plans.size(), [&](std::size_t i) {
    const Workload stage = at_stage(workload, static_cast<RankId>(i / count));
    const auto& [kind, of] = run.plans[i % count];
    // Packing waits, and the thread may come here again meanwhile.
    thread_local BufferLives room;
    BufferLives lives = std::move(room);
    build_lives(kind, stage, *of, lives);
    of_plans[i] = packed(lives);
    room = std::move(lives);
  });
  for (std::size_t i = 0; i < of_plans.size(); ++i) needs[i / count] = larger(needs[i / count], of_plans[i]);
  return needs;
}

TierBytes run_needs(const Workload& workload, const Schedule& schedule) {
  TierBytes most;
  for (const TierBytes& stage : stage_needs(workload, schedule)) most = larger(most, stage);
  return most;
}

namespace {

TierBytes live_needs_of(const Workload& workload, const Schedule& schedule, Plans plans,
                        const std::vector<RankId>& stages) {
  TierBytes most;
  const PlansOfRun run(workload, schedule);
  const std::size_t count = plans == Plans::own ? 1 : plans == Plans::main ? run.of_steps : run.plans.size();
  for (const RankId s : stages) {
    const Workload stage = at_stage(workload, s);
    for (std::size_t i = 0; i < count; ++i) {
      thread_local BufferLives lives;
      build_lives(run.plans[i].first, stage, *run.plans[i].second, lives);
      most = larger(most, most_alive(lives));
    }
  }
  return most;
}

}  // namespace

TierBytes live_needs(const Workload& workload, const Schedule& schedule, Plans plans) {
  std::vector<RankId> stages(workload.stages());
  std::iota(stages.begin(), stages.end(), RankId{0});
  return live_needs_of(workload, schedule, plans, stages);
}

TierBytes usual_needs(const Workload& workload, const Schedule& schedule, Plans plans) {
  const RankId count = workload.stages();
  if (count <= 6) return live_needs(workload, schedule, plans);
  const auto at = [](int stage) { return static_cast<RankId>(stage); };
  return live_needs_of(workload, schedule, plans, {at(0), at(1), at(count / 2), at(count - 2), at(count - 1)});
}

}  // namespace sluice
