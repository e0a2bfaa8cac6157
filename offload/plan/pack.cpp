#include <algorithm>
#include <vector>

#include "offload/plan/finish.h"
#include "offload/plan/pack_fit.h"
#include "sluice/status.h"

namespace sluice {
using namespace planning;
namespace {

struct Lives {
  std::vector<std::uint32_t> first,
      last;  ///< ops that touch each buffer, in program order; first is no_op if none does
};

Lives lives_of(const StepPlan& plan) {
  Lives lives{std::vector<std::uint32_t>(plan.buffers.size(), no_op), std::vector<std::uint32_t>(plan.buffers.size())};
  for (OpId i = 0; i < plan.ops.size(); ++i)
    for (const Access& a : plan.ops[i].accesses) {
      SLUICE_CHECK(a.buffer < plan.buffers.size(), "op %u names buffer %u of %zu", i, a.buffer, plan.buffers.size());
      if (lives.first[a.buffer] == no_op) lives.first[a.buffer] = i;
      lives.last[a.buffer] = i;
    }
  return lives;
}

void pack_arena(StepPlan& plan, Arena& arena, const std::vector<BufferId>& members, const Lives& lives,
                PackEffort effort) {
  std::uint64_t persistent_bytes = 0;
  std::vector<BufferId> transients;
  std::vector<Piece> pieces;
  for (const BufferId id : members) {
    Buffer& b = plan.buffers[id];
    if (b.life == Life::persistent) {
      b.offset = persistent_bytes;
      persistent_bytes += footprint_bytes(b);
      continue;
    }
    SLUICE_CHECK(lives.first[id] != no_op, "no op touches transient buffer %u %s", id, b.name.c_str());
    transients.push_back(id);
    pieces.push_back({lives.first[id], lives.last[id], footprint_bytes(b), b.life == Life::lasting});
  }
  arena.max_live_bytes = persistent_bytes + max_live_bytes(pieces);
  const std::uint64_t good_height = arena.max_live_bytes + arena.max_live_bytes / 50 - persistent_bytes;
  const Placement placement = place_pieces(pieces, good_height, effort == PackEffort::full);
  for (std::size_t i = 0; i < transients.size(); ++i)
    plan.buffers[transients[i]].offset = persistent_bytes + placement.offsets[i];
  arena.arena_bytes = persistent_bytes + placement.height;
}

}  // namespace

void pack(StepPlan& plan, PackEffort effort) {
  const auto index_of = [&plan](const Buffer& b) {
    for (std::size_t i = 0; i < plan.arenas.size(); ++i)
      if (plan.arenas[i].tier == b.tier && plan.arenas[i].rank == b.rank) return i;
    plan.arenas.push_back({b.tier, b.rank});
    return plan.arenas.size() - 1;
  };
  const Lives lives = lives_of(plan);
  std::vector<std::vector<BufferId>> members(plan.arenas.size());
  for (BufferId id = 0; id < plan.buffers.size(); ++id) {
    const std::size_t arena = index_of(plan.buffers[id]);
    members.resize(std::max(members.size(), arena + 1));
    members[arena].push_back(id);
  }
  for (std::size_t i = 0; i < members.size(); ++i) pack_arena(plan, plan.arenas[i], members[i], lives, effort);
}

}  // namespace sluice
