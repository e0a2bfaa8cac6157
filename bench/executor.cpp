// What the executor itself costs per op, with ops that do (almost) nothing. Target: under 5 microseconds.
//
//     bench_executor [--smoke]
//
// chain     ops of one lane, one after the other: dispatch and completion alone
// streams   h2d -> compute -> d2h over eight buffers, as layers stream: waits that are mostly over when looked at
// handover  two lanes that wait for one another at every op: a sleep and a wake-up each, the worst case
// busy      compute ops of 50 us, fed by h2d: what the compute lane loses per op while the other lanes work
#include "offload/run/executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "offload/plan/finish.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
/// Of all threads of the process: does not see what other programs do to the machine.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr std::uint64_t buffer_bytes = 4096;

class Idle final : public ComputeBackend {
 public:
  explicit Idle(double seconds) : seconds_(seconds) {}
  Status run(const StepPlan&, const Op&, std::span<const Operand>, const StepParams&) override {
    if (seconds_ == 0) return success();
    const Clock::time_point start = Clock::now();
    while (seconds_since(start) < seconds_) {
    }
    return success();
  }

 private:
  double seconds_;
};

struct Toy {
  StepPlan plan;

  Toy() {
    plan.cyclic = true;
    plan.lanes = {{LaneKind::compute}, {LaneKind::h2d}, {LaneKind::d2h}};
  }
  BufferId buffer(Tier tier) {
    Buffer b;
    b.name = "b" + std::to_string(plan.buffers.size());
    b.tier = tier;
    b.bytes = buffer_bytes;
    b.life = Life::persistent;
    plan.buffers.push_back(b);
    return static_cast<BufferId>(plan.buffers.size() - 1);
  }
  void op(OpKind kind, LaneId lane, BufferId src, BufferId dst) {
    Op o;
    o.kind = kind;
    o.lane = lane;
    o.bytes = 64;
    o.accesses = {{src, 0, 64, Role::src, Mode::read}, {dst, 64, 64, Role::dst, Mode::write}};
    plan.ops.push_back(o);
  }
};

StepPlan chain(int ops) {
  Toy toy;
  const BufferId a = toy.buffer(Tier::device);
  for (int i = 0; i < ops; ++i) toy.op(OpKind::forward, 0, a, a);
  return toy.plan;
}

StepPlan streams(int ops, bool drain) {
  Toy toy;
  std::vector<BufferId> host, device;
  for (int i = 0; i < 8; ++i) {
    host.push_back(toy.buffer(Tier::host));
    device.push_back(toy.buffer(Tier::device));
  }
  const BufferId x = toy.buffer(Tier::device);
  for (int i = 0; i < ops / (drain ? 3 : 2); ++i) {
    const auto k = static_cast<std::size_t>(i % 8);
    toy.op(OpKind::copy, 1, host[k], device[k]);
    Op& compute = (toy.op(OpKind::forward, 0, device[k], x), toy.plan.ops.back());
    compute.accesses[0].offset = 64;
    if (drain) compute.accesses.push_back({device[k], 128, 64, Role::x_out, Mode::write});
    if (!drain) continue;
    toy.op(OpKind::copy, 2, device[k], host[k]);
    toy.plan.ops.back().accesses[0].offset = 128;
  }
  return toy.plan;
}

StepPlan handover(int ops) {
  Toy toy;
  const BufferId a = toy.buffer(Tier::device), b = toy.buffer(Tier::host);
  for (int i = 0; i < ops / 2; ++i) {
    toy.op(OpKind::copy, 2, a, b);
    toy.plan.ops.back().accesses[1].offset = 0;
    toy.op(OpKind::copy, 1, b, a);
    toy.plan.ops.back().accesses[1].offset = 0;
  }
  return toy.plan;
}

/// Seconds per op (per compute op where it has work), best of the iterations, beyond the work itself.
bool measure(const char* name, StepPlan plan, double work, int iterations) {
  finish(plan);
  std::vector<ArenaSpec> specs;
  for (const Arena& arena : plan.arenas) specs.push_back({arena.tier, arena.arena_bytes});
  HostDevice device;
  Result<Memory> memory = Memory::create(specs, device);
  if (!memory.ok()) return false;
  std::memset(memory->at(Tier::device, 0), 0, buffer_bytes);
  Idle idle(work);
  Executor executor({.memory = &*memory, .backend = &idle, .units = {}}, {.record_timeline = true});
  if (!executor.begin(plan).ok()) return false;
  double computes = 0, waits = 0;
  for (const Op& op : plan.ops) {
    computes += op.kind == OpKind::forward ? 1 : 0;
    waits += static_cast<double>(op.waits.size());
  }
  const double ops = static_cast<double>(plan.ops.size());
  double best = 1e9, best_cpu = 1e9;
  for (int i = 0; i < iterations; ++i) {
    const double cpu = cpu_seconds();
    const Clock::time_point start = Clock::now();
    if (!executor.release({}).ok() || !executor.wait(static_cast<std::uint64_t>(i)).ok()) return false;
    best = std::min(best, seconds_since(start) - work * computes);
    best_cpu = std::min(best_cpu, cpu_seconds() - cpu - work * computes);
  }
  const double wall = best / (work > 0 ? computes : ops), busy = best_cpu / ops;
  std::printf("%-9s %6.0f ops  %4.2f waits/op  %7.3f us/op wall  %7.3f us/op of CPU  target 5 us  ratio %.3f\n", name,
              ops, waits / ops, wall * 1e6, busy * 1e6, wall / 5e-6);
  return executor.end().ok();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const bool smoke = argc > 1 && std::string(argv[1]) == "--smoke";
  const int ops = smoke ? 300 : 6000, iterations = smoke ? 2 : 20;
  const bool ran = sluice::measure("chain", sluice::chain(ops), 0, iterations) &&
                   sluice::measure("streams", sluice::streams(ops, true), 0, iterations) &&
                   sluice::measure("handover", sluice::handover(ops), 0, iterations) &&
                   sluice::measure("busy", sluice::streams(ops / 3, false), 50e-6, iterations);
  return ran ? 0 : 1;
}
