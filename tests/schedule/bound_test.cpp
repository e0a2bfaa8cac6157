// No schedule of any preset is predicted to be faster than the work that it has, on machines that are alike or odd.
#include <gtest/gtest.h>

#include "offload/plan/simulate.h"
#include "random_schedule.h"
#include "src/schedule/build.h"

namespace sluice::test {
namespace {

HardwareProfile server() {
  HardwareProfile hw;
  hw.cores = hw.compute_threads = 16;
  hw.optimizer_threads = 8;
  hw.gemm_flops_bf16 = 2e12;
  hw.handoff_seconds = 1e-4;
  hw.drive.read_bytes_per_second = 5e9;
  hw.drive.write_bytes_per_second = 3e9;
  hw.drive.mixed_bytes_per_second = 4.5e9;
  hw.drive.read_latency_seconds = 1e-4;
  return hw;
}

HardwareProfile with_gpu(double both_ways) {
  HardwareProfile hw = server();
  DeviceProfile& gpu = hw.device.emplace();
  gpu.gemm_flops_bf16 = 3e14;
  gpu.h2d_bytes_per_second = 2.5e10;
  gpu.d2h_bytes_per_second = 2.4e10;
  gpu.both_bytes_per_second = both_ways;
  gpu.optimizer_threads = 14;
  gpu.host_adamw_parameters_per_second = 2e9;
  return hw;
}

Schedule drawn(const Workload& w, std::uint64_t seed) {
  Draw draw(seed);
  Schedule s = random_schedule(draw, w);
  s.tile_numel = tile_for(w, 1u << 18, 128);
  return s;
}

/// Ops that take `share` of the time that the best multiply would.
void measure_ops(const StepPlan& plan, double share, HardwareProfile& hw) {
  const double rate = hw.device ? hw.device->gemm_flops_bf16 : hw.gemm_flops_bf16;
  for (const Op& op : plan.ops)
    if (op.cost >= 0) hw.op_seconds[plan.cost_keys[static_cast<std::size_t>(op.cost)]] = share * op.flop / rate + 1e-6;
}

TEST(Bound, NoPresetIsPredictedFasterThanItsWork) {
  for (const std::string& preset : preset_names()) {
    const auto config = preset_config(preset);
    ASSERT_TRUE(config.ok());
    const ModelSpec model = build_model(*config);
    Workload w;
    w.model = &model;
    w.shape = {1, 512};
    w.micro_batches = 2;
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      const StepPlan plan = build_plan(PlanKind::train, w, drawn(w, seed), PackEffort::quick);
      for (const HardwareProfile& machine : {server(), with_gpu(1.5e10)})
        for (const double share : {0.0, 0.8}) {
          SCOPED_TRACE(preset + " seed " + std::to_string(seed) + (machine.device ? " gpu, ops " : " cpu, ops ") +
                       std::to_string(share));
          HardwareProfile hw = machine;
          if (share > 0) measure_ops(plan, share, hw);
          const Simulation s = simulate(plan, hw);
          EXPECT_GE(s.step_seconds, s.bound_seconds * (1 - 1e-9));
          EXPECT_GE(s.end_seconds, (s.timeline[0].iteration + 1) * s.bound_seconds * (1 - 1e-9));
        }
    }
  }
}

// The matrix multiply was measured while others computed, the ops were not.
TEST(Bound, OfALargeModelHoldsWhereTheMatmulRateWasMeasuredTooLow) {
  const ModelSpec model = build_model(*preset_config("llama-13b"));
  Workload w;
  w.model = &model;
  w.shape = {1, 2048};
  Schedule schedule = frugal_schedule(w);
  schedule.tile_numel = tile_for(w, 1u << 18, 128);
  for (UnitChoice& c : schedule.units) c.state_home = c.parameter_home = Place::host;
  const StepPlan plan = build_plan(PlanKind::train, w, schedule, PackEffort::quick);
  HardwareProfile hw = server();
  measure_ops(plan, 1 / 1.3, hw);
  hw.gemm_flops_bf16 /= 4;
  const Simulation s = simulate(plan, hw);
  EXPECT_GE(s.step_seconds, s.bound_seconds);
}

}  // namespace
}  // namespace sluice::test
