// What a plan of many ranks costs: to build, pack and order, to prove, and to simulate.
//
//     bench_plan [--smoke]
//
// 80 layers, 32 micro-batches of 2048 tokens, vertical, states on the drive, on 1 to 512 data-parallel ranks. A plan is
// one rank's program, so that time and memory are to fall with the number of ranks, as shards do, and not to grow: for
// 512 ranks at most 1 s and 1 GiB.
#include <sys/resource.h>

#include <cstdio>
#include <string_view>

#include "offload/plan/simulate.h"
#include "sluice/clock.h"
#include "src/schedule/build.h"

namespace sluice {
namespace {

Workload workload(const ModelSpec& model, RankId ranks, int micro_batches) {
  Workload w;
  w.model = &model;
  w.micro_batches = micro_batches;
  w.shape = {1, 2048};
  w.topology = data_parallel(ranks);
  w.durable = true;
  return w;
}

Schedule streamed(const Workload& w) {
  Schedule s = frugal_schedule(w);
  s.group = w.micro_batches;
  s.hold = true;
  s.prefetch = s.lag = 1;
  s.tiles_in_flight = 4;
  s.tile_numel = tile_for(w, 1u << 18, 2048);
  for (UnitChoice& c : s.units) {
    c.accumulator = c.boundary = Place::device;
    c.gradient = Place::host;
  }
  return s;
}

bool measure(const ModelSpec& model, RankId ranks, int micro_batches) {
  const Workload w = workload(model, ranks, micro_batches);
  const Schedule s = streamed(w);
  const double begin = now_seconds();
  const StepPlan plan = build_plan(PlanKind::train, w, s);
  const double built = now_seconds();
  const bool sound = prove(plan, w, s).empty();
  const double proven = now_seconds();
  const Simulation sim = simulate(plan, HardwareProfile());
  const double done = now_seconds();
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  std::printf("%4d ranks  %6zu ops  build %.2f s  prove %.2f s  simulate %.2f s  together %.2f s  memory %.2f GiB\n",
              ranks, plan.ops.size(), built - begin, proven - built, done - proven, done - begin,
              static_cast<double>(use.ru_maxrss) / (1 << 20));
  return sound && sim.step_seconds > 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  const bool smoke = argc > 1 && std::string_view(argv[1]) == "--smoke";
  const auto config = preset_config(smoke ? "llama-125m" : "llama-70b");
  if (!config.ok()) return 1;
  const ModelSpec model = build_model(*config);
  bool sound = true;
  for (const RankId ranks : {512, 64, 8, 1}) sound = measure(model, ranks, smoke ? 4 : 32) && sound;
  return sound ? 0 : 1;
}
