#include <algorithm>
#include <vector>

#include "offload/parallel.h"
#include "offload/plan/finish.h"
#include "offload/plan/pack_fit.h"
#include "sluice/status.h"

namespace sluice {
using namespace planning;
namespace {

/// One after the other, durable ones first: so these lie where they lie in the plan of any other budgets, lengths and
/// orders of updates, and a run that changes those moves none of them. Returns where they end.
std::uint64_t place_persistent(std::vector<Buffer>& buffers, const std::vector<BufferId>& members) {
  std::uint64_t end = 0;
  for (const bool durable : {true, false})
    for (const BufferId id : members) {
      Buffer& b = buffers[id];
      if (b.life != Life::persistent || (b.slots == 2) != durable) continue;
      b.offset = end;
      end += footprint_bytes(b);
    }
  return end;
}

void pack_arena(std::vector<Buffer>& buffers, Arena& arena, const std::vector<BufferId>& members, const Lives& lives,
                PackEffort effort) {
  const std::uint64_t persistent_bytes = place_persistent(buffers, members);
  std::vector<BufferId> transients;
  std::vector<Piece> pieces;
  for (const BufferId id : members) {
    Buffer& b = buffers[id];
    if (b.life == Life::persistent) continue;
    SLUICE_CHECK(lives.first[id] != no_op, "no op touches transient buffer %u %s", id, b.name.c_str());
    if (footprint_bytes(b) == 0) {
      b.offset = 0;
      continue;
    }
    transients.push_back(id);
    pieces.push_back({lives.first[id], lives.last[id], footprint_bytes(b), b.life == Life::lasting});
  }
  arena.max_live_bytes = persistent_bytes + max_live_bytes(pieces);
  const std::uint64_t good_height = arena.max_live_bytes + arena.max_live_bytes / 50 - persistent_bytes;
  const Placement placement = place_pieces(pieces, good_height, effort);
  for (std::size_t i = 0; i < transients.size(); ++i)
    buffers[transients[i]].offset = persistent_bytes + placement.offsets[i];
  arena.arena_bytes = persistent_bytes + placement.height;
  arena.packing = placement.state;
}

}  // namespace

Lives lives_of(const StepPlan& plan) {
  Lives lives{std::vector<OpId>(plan.buffers.size(), no_op), std::vector<OpId>(plan.buffers.size()),
              static_cast<OpId>(plan.ops.size())};
  for (OpId i = 0; i < plan.ops.size(); ++i)
    for (const Access& a : plan.ops[i].accesses) {
      SLUICE_CHECK(a.buffer < plan.buffers.size(), "op %u names buffer %u of %zu", i, a.buffer, plan.buffers.size());
      if (lives.first[a.buffer] == no_op) lives.first[a.buffer] = i;
      lives.last[a.buffer] = i;
    }
  return lives;
}

void pack(std::vector<Buffer>& buffers, std::vector<Arena>& arenas, const Lives& lives, PackEffort effort) {
  const auto index_of = [&](const Buffer& b) {
    for (std::size_t i = 0; i < arenas.size(); ++i)
      if (arenas[i].tier == b.tier) return i;
    arenas.push_back({b.tier});
    return arenas.size() - 1;
  };
  std::vector<std::vector<BufferId>> members(arenas.size());
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const std::size_t arena = index_of(buffers[id]);
    members.resize(std::max(members.size(), arena + 1));
    members[arena].push_back(id);
  }
  // Each writes to its own buffers alone.
  parallel_for(members.size(), [&](std::size_t i) { pack_arena(buffers, arenas[i], members[i], lives, effort); });
}

void pack(StepPlan& plan, PackEffort effort) { pack(plan.buffers, plan.arenas, lives_of(plan), effort); }

}  // namespace sluice
