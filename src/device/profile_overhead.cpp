// What the executor costs per op: a plan of copies of one cache line, streamed through two lanes as units are.
#include <algorithm>
#include <cstring>

#include "offload/plan/finish.h"
#include "offload/run/executor.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

constexpr std::uint64_t line_bytes = 64;
constexpr int ring = 8;       ///< buffers in flight between the lanes
constexpr int rounds = 1000;  ///< copies down, and as many up

StepPlan copies() {
  StepPlan plan;
  plan.lanes = {{LaneKind::h2d}, {LaneKind::d2h}};
  for (int i = 0; i < 2 * ring; ++i) {
    Buffer b;
    b.name = "line" + std::to_string(i);
    b.tier = i < ring ? Tier::device : Tier::host;
    b.bytes = line_bytes;
    b.life = Life::persistent;
    plan.buffers.push_back(b);
  }
  for (int i = 0; i < 2 * rounds; ++i) {
    const bool down = i % 2 == 0;
    const BufferId device = static_cast<BufferId>(i / 2 % ring), host = device + ring;
    Op op;
    op.kind = OpKind::copy;
    op.lane = down ? 0 : 1;
    op.bytes = line_bytes;
    op.accesses = {{down ? host : device, 0, line_bytes, Role::src, Mode::read},
                   {down ? device : host, 0, line_bytes, Role::dst, Mode::write}};
    plan.ops.push_back(op);
  }
  finish(plan);
  return plan;
}

}  // namespace

Result<double> measure_op_overhead_seconds(double seconds) {
  const StepPlan plan = copies();
  std::vector<ArenaSpec> arenas;
  for (const Arena& a : plan.arenas) arenas.push_back({a.tier, a.rank, a.arena_bytes});
  HostDevice device;
  SLUICE_ASSIGN(Memory memory, Memory::create(arenas, device));
  ExecutorParts parts;
  parts.memory = &memory;
  parts.backends = {nullptr};
  Executor executor(parts, {});
  SLUICE_TRY(executor.begin(plan));
  double best = 1e300;
  const double end = now_seconds() + seconds;
  for (std::uint64_t i = 0; i < 2 || now_seconds() < end; ++i) {
    const double start = now_seconds();
    SLUICE_TRY(executor.release({}));
    SLUICE_TRY(executor.wait(i));
    best = std::min(best, now_seconds() - start);
  }
  SLUICE_TRY(executor.end());
  return best / static_cast<double>(plan.ops.size());
}

}  // namespace sluice
