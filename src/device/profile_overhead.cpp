// What the executor costs: per op, in a plan of copies of one cache line, streamed through two lanes as units are; and
// per handoff, where each of two lanes sleeps until the other has copied.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "offload/plan/finish.h"
#include "offload/run/executor.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

/// `rounds` copies of `bytes` down to the device and as many up again, over `ring` pairs of buffers.
StepPlan copies(std::uint64_t bytes, int ring, int rounds, bool one_lane) {
  StepPlan plan;
  plan.lanes = {{LaneKind::h2d}, {LaneKind::d2h}};
  for (int i = 0; i < 2 * ring; ++i) {
    Buffer b;
    b.name = "block" + std::to_string(i);
    b.tier = i < ring ? Tier::device : Tier::host;
    b.bytes = bytes;
    b.life = Life::persistent;
    plan.buffers.push_back(b);
  }
  for (int i = 0; i < 2 * rounds; ++i) {
    const bool down = i % 2 == 0;
    const auto device = static_cast<BufferId>(i / 2 % ring), host = static_cast<BufferId>(device + ring);
    Op op;
    op.kind = OpKind::copy;
    op.lane = down || one_lane ? 0 : 1;
    op.bytes = bytes;
    op.accesses = {{down ? host : device, 0, bytes, Role::src, Mode::read},
                   {down ? device : host, 0, bytes, Role::dst, Mode::write}};
    plan.ops.push_back(op);
  }
  finish(plan);
  return plan;
}

/// Seconds per op of every run of the plan within the time, shortest first; at least two runs.
Result<std::vector<double>> time_ops(const StepPlan& plan, double seconds) {
  std::vector<ArenaSpec> arenas;
  for (const Arena& a : plan.arenas) arenas.push_back({a.tier, a.arena_bytes});
  HostDevice device;
  SLUICE_ASSIGN(Memory memory, Memory::create(arenas, device));
  ExecutorParts parts;
  parts.memory = &memory;
  Executor executor(parts, {});
  SLUICE_TRY(executor.begin(plan));
  std::vector<double> times;
  const double end = now_seconds() + seconds;
  for (std::uint64_t i = 0; i < 2 || now_seconds() < end; ++i) {
    const double start = now_seconds();
    SLUICE_TRY(executor.release({}));
    SLUICE_TRY(executor.wait(i));
    times.push_back((now_seconds() - start) / static_cast<double>(plan.ops.size()));
  }
  SLUICE_TRY(executor.end());
  std::sort(times.begin(), times.end());
  return times;
}

/// Threads that keep cores busy, as compute does.
class Load {
 public:
  explicit Load(int threads) {
    for (int i = 0; i < threads; ++i)
      team_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
  }
  ~Load() {
    stop_ = true;
    for (std::thread& t : team_) t.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> team_;
};

}  // namespace

Result<double> measure_op_overhead_seconds(double seconds) {
  SLUICE_ASSIGN(const std::vector<double> times, time_ops(copies(64, 8, 1000, false), seconds));
  return times.front();
}

Result<double> measure_handoff_seconds(int busy_threads, double seconds) {
  const Load load(busy_threads);
  constexpr std::uint64_t bytes = 1u << 18;
  SLUICE_ASSIGN(const std::vector<double> stay, time_ops(copies(bytes, 1, 20, true), seconds / 2));
  SLUICE_ASSIGN(const std::vector<double> cross, time_ops(copies(bytes, 1, 20, false), seconds / 2));
  return std::max(0.0, cross[cross.size() / 2] - stay[stay.size() / 2]);
}

}  // namespace sluice
