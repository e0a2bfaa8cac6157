#include <algorithm>
#include <vector>

#include "offload/parallel.h"
#include "offload/plan/finish.h"
#include "offload/plan/pack_fit.h"
#include "sluice/status.h"

namespace sluice {
using namespace planning;
namespace {

/// What is carried at a time, and lies from the end of persistent buffers up: where a piece can begin that lives then.
class Floors {
 public:
  /// Of buffers that lie one above the other, in order.
  void add(OpId first, OpId last, std::uint64_t end) { carried_.push_back({first, last, end}); }
  std::uint64_t below(const Piece& p) const {
    std::uint64_t floor = 0;
    for (const Carried& c : carried_)
      if ((c.last != no_op && p.first <= c.last) || (c.first != no_op && p.last >= c.first)) floor = c.end;
    return floor;
  }
  std::uint64_t height() const { return carried_.empty() ? 0 : carried_.back().end; }

 private:
  struct Carried {
    OpId first, last;
    std::uint64_t end;
  };
  std::vector<Carried> carried_;
};

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
  std::vector<Piece> pieces, carried;
  Floors floors;
  for (const BufferId id : members) {
    Buffer& b = buffers[id];
    if (b.life == Life::persistent) continue;
    // What another plan of the run carries keeps its place.
    SLUICE_CHECK(lives.first[id] != no_op || b.life == Life::carried, "no op touches transient buffer %u %s", id,
                 b.name.c_str());
    const OpId first = lives.first[id], last = lives.last[id];
    const std::uint64_t bytes = footprint_bytes(b);
    if (bytes == 0) {
      b.offset = 0;
    } else if (b.life == Life::carried) {
      b.offset = persistent_bytes + floors.height();
      floors.add(first, last, floors.height() + bytes);
      if (last != no_op) carried.push_back({0, last, bytes});
      if (first != no_op) carried.push_back({first, lives.ops - 1, bytes});
    } else {
      transients.push_back(id);
      pieces.push_back({first, last, bytes, b.life == Life::lasting});
    }
  }
  carried.insert(carried.end(), pieces.begin(), pieces.end());
  arena.max_live_bytes = persistent_bytes + max_live_bytes(carried);
  for (Piece& p : pieces) p.floor = floors.below(p);
  const std::uint64_t good_height = arena.max_live_bytes + arena.max_live_bytes / 50 - persistent_bytes;
  const Placement placement = place_pieces(pieces, good_height, effort);
  for (std::size_t i = 0; i < transients.size(); ++i)
    buffers[transients[i]].offset = persistent_bytes + placement.offsets[i];
  const std::uint64_t height = std::max(placement.height, floors.height());
  arena.arena_bytes = persistent_bytes + height;
  // The order of what is carried is given: another one might be lower.
  arena.packing =
      floors.height() == 0 ? placement.state : state_of(height, arena.max_live_bytes - persistent_bytes, good_height);
}

}  // namespace

Lives lives_of(const StepPlan& plan) {
  Lives lives;
  lives.ops = static_cast<OpId>(plan.ops.size());
  for (const Buffer& b : plan.buffers) lives.add(b.life);
  for (OpId i = 0; i < plan.ops.size(); ++i)
    for (const Access& a : plan.ops[i].accesses) {
      SLUICE_CHECK(a.buffer < plan.buffers.size(), "op %u names buffer %u of %zu", i, a.buffer, plan.buffers.size());
      lives.use(plan.buffers[a.buffer].life, a, i);
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
