// Predicted times of plans small enough to work out by hand.
#include "offload/plan/simulate.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "offload/plan/cost.h"
#include "offload/plan/finish.h"
#include "tests/plan/random_plan.h"

namespace sluice {
namespace {

/// Round numbers: one second is 100 FLOP, 10 bytes over a link, 10 bytes read, 5 bytes written, 100 bytes of DRAM.
HardwareProfile simple_machine() {
  HardwareProfile hw;
  hw.cores = 4;
  hw.compute_threads = 2;
  hw.optimizer_threads = 2;
  hw.gemm_flops_f32 = 100;
  hw.gemm_flops_bf16 = 200;
  hw.h2d_bytes_per_second = hw.d2h_bytes_per_second = 10;
  hw.drive.read_bytes_per_second = 10;
  hw.drive.write_bytes_per_second = 5;
  hw.drive.mixed_bytes_per_second = 8;
  hw.memory_bytes_per_second = 100;
  hw.adamw_parameters_per_second = 10;
  hw.norm_bytes_per_second = 40;
  hw.checksum_bytes_per_second = 1000;
  hw.op_overhead_seconds = 0;
  return hw;
}

StepPlan lanes_only(bool cyclic = false) {
  StepPlan plan;
  plan.cyclic = cyclic;
  plan.units = {"a", "b"};
  for (const LaneKind k :
       {LaneKind::compute, LaneKind::h2d, LaneKind::nvme_read, LaneKind::nvme_write, LaneKind::optimizer})
    plan.lanes.push_back({k, k == LaneKind::nvme_read || k == LaneKind::nvme_write});
  return plan;
}

OpId compute_op(StepPlan& plan, double flop, std::vector<Wait> waits = {}, UnitId unit = 0) {
  Op op;
  op.kind = OpKind::forward;
  op.unit = unit;
  op.flop = flop;
  op.waits = std::move(waits);
  plan.ops.push_back(op);
  return static_cast<OpId>(plan.ops.size() - 1);
}

OpId moved(StepPlan& plan, OpKind kind, LaneId lane, std::uint64_t bytes, std::vector<Wait> waits = {}) {
  Op op;
  op.kind = kind;
  op.lane = lane;
  op.bytes = bytes;
  op.waits = std::move(waits);
  plan.ops.push_back(op);
  return static_cast<OpId>(plan.ops.size() - 1);
}

TEST(Simulate, Serial) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::copy, 1, 20);  // 2 s
  compute_op(plan, 300, {{0, false}});  // 3 s
  compute_op(plan, 100);                // 1 s
  const Simulation s = simulate(plan, simple_machine());
  EXPECT_DOUBLE_EQ(s.step_seconds, 6);
  EXPECT_DOUBLE_EQ(s.bound_seconds, 4);
  EXPECT_EQ(s.bottleneck, Resource::compute);
  EXPECT_DOUBLE_EQ(s.timeline[1].start, 2);
  EXPECT_DOUBLE_EQ(s.timeline[2].start, 5);
  EXPECT_DOUBLE_EQ(s.lane_busy[0], 4.0 / 6);
  EXPECT_DOUBLE_EQ(s.lane_busy[1], 2.0 / 6);
  EXPECT_DOUBLE_EQ(s.resource_seconds[static_cast<std::size_t>(Resource::link_down)], 2);
}

TEST(Simulate, Overlap) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::copy, 1, 20);
  compute_op(plan, 300, {{0, false}});
  moved(plan, OpKind::copy, 1, 20);
  compute_op(plan, 100, {{2, false}});
  EXPECT_DOUBLE_EQ(simulate(plan, simple_machine()).step_seconds, 6);  // the second copy hides behind 3 s of compute
}

TEST(Simulate, DriveReadsAndWritesShare) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::read, 2, 40);   // 4 s alone
  moved(plan, OpKind::write, 3, 16);  // 3.2 s alone
  // Together 8 B/s, halved: the write ends after 4 s with 16 bytes read, the other 24 take 2.4 s.
  const Simulation s = simulate(plan, simple_machine());
  EXPECT_NEAR(s.step_seconds, 6.4, 1e-9);
  EXPECT_NEAR(s.bound_seconds, 6.4, 1e-9);
  EXPECT_EQ(s.bottleneck, Resource::drive);
  EXPECT_NEAR(s.timeline[1].end, 4, 1e-9);
}

TEST(Simulate, ASyncTakesAsLongAsWhatWasWrittenAndNoCore) {
  StepPlan plan = lanes_only();
  plan.lanes.push_back({LaneKind::commit, false});
  moved(plan, OpKind::write, 3, 10);  // 2 s
  moved(plan, OpKind::write, 3, 10);
  moved(plan, OpKind::sync, 5, 0, {{1, false}});
  compute_op(plan, 700);
  HardwareProfile hw = simple_machine();
  hw.drive.sync_seconds_per_byte = 0.25;  // of 20 bytes
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[2].start, 4);
  EXPECT_DOUBLE_EQ(s.timeline[2].end, 9);
  EXPECT_DOUBLE_EQ(s.timeline[3].end, 7) << "beside it";
  EXPECT_DOUBLE_EQ(s.resource_seconds[static_cast<std::size_t>(Resource::cores)],
                   simulate(plan, simple_machine()).resource_seconds[static_cast<std::size_t>(Resource::cores)]);
}

TEST(Simulate, ReadsHardlyMoveBesideASync) {
  StepPlan plan = lanes_only();
  plan.lanes.push_back({LaneKind::commit, false});
  moved(plan, OpKind::write, 3, 10);  // 2 s
  moved(plan, OpKind::sync, 5, 0, {{0, false}});
  moved(plan, OpKind::read, 2, 20, {{0, false}});  // 2 s alone
  HardwareProfile hw = simple_machine();
  hw.drive.sync_seconds_per_byte = 0.4;  // 4 s
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 6);
  EXPECT_NEAR(s.timeline[2].end, 8 - 4.0 / 20, 1e-9);
  // Read and written at once as far as that goes, 3.5 s; and what the sync leaves others of the drive is not lost.
  EXPECT_NEAR(s.bound_seconds, 3.5 + 4 * (1 - 1.0 / 20), 1e-9) << "the drive's, which the sync has nearly to itself";
  EXPECT_EQ(s.bottleneck, Resource::drive);
}

TEST(Simulate, AWindowedLaneIsOneServer) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::read, 2, 10);
  moved(plan, OpKind::read, 2, 10);
  const Simulation s = simulate(plan, simple_machine());
  EXPECT_DOUBLE_EQ(s.step_seconds, 2);
  EXPECT_DOUBLE_EQ(s.timeline[1].start, 1);
}

TEST(Simulate, AWindowHoldsAsManyRequestsAsTheDriveWasTunedTo) {
  StepPlan plan = lanes_only();
  for (int i = 0; i < 8; ++i) moved(plan, OpKind::read, 2, 10);  // 1 s each, two requests
  HardwareProfile hw = simple_machine();
  hw.drive.block_bytes = 5;
  hw.drive.read_latency_seconds = 4;
  hw.drive.depth = 10;  // as many as begin until one lands: the drive is never idle
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 8 + 4);
  hw.drive.depth = 4;  // two ops fly, and the third waits for the first to land
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 4 * 5 + 1);
  hw.drive.depth = 5;
  hw.drive.stripe_weights = {1, 1};  // so many on each of two drives
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 8 + 4);
  hw.drive.stripe_weights.clear();
  hw.drive.depth = 1;
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 8 * 5);
}

TEST(Simulate, CoresAreShared) {
  StepPlan plan = lanes_only();
  compute_op(plan, 100);  // 1 s, 2 threads
  Op update;
  update.kind = OpKind::update;
  update.lane = 4;
  update.numel = 10;  // 1 s, 2 threads
  plan.ops.push_back(update);
  HardwareProfile hw = simple_machine();
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 1);
  hw.cores = 2;
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 2);
  EXPECT_DOUBLE_EQ(simulate(plan, hw).bound_seconds, 2);
  EXPECT_EQ(simulate(plan, hw).bottleneck, Resource::cores);
  // A read that checks sums for a hundredth of the time gets its share and is not slowed.
  moved(plan, OpKind::read, 2, 10);
  EXPECT_NEAR(simulate(plan, hw).timeline[2].end, 1, 1e-9);
}

// Parts of a compute op end together: a copy on one of its two cores holds up both.
TEST(Simulate, ATeamIsAsSlowAsItsMostCrowdedCore) {
  StepPlan plan = lanes_only();
  compute_op(plan, 100);             // 1 s, 2 threads
  moved(plan, OpKind::copy, 1, 10);  // 1 s, 1 thread
  HardwareProfile hw = simple_machine();
  hw.cores = 3;
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 1);
  hw.cores = 2;
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 2);
  // Another one works on the other core, and costs the team nothing more.
  Op norm;
  norm.kind = OpKind::grad_norm;
  norm.lane = 4;
  norm.bytes = 40;  // 1 s
  hw.optimizer_threads = 1;
  plan.ops.push_back(norm);
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 2);
}

TEST(Simulate, MemoryIsShared) {
  StepPlan plan = lanes_only();
  HardwareProfile hw = simple_machine();
  hw.h2d_bytes_per_second = hw.d2h_bytes_per_second = 100;
  plan.lanes.push_back({LaneKind::d2h});
  moved(plan, OpKind::copy, 1, 100);
  moved(plan, OpKind::copy, 5, 50);
  // Both at half speed for 1 s, then the longer alone.
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 1);
  EXPECT_DOUBLE_EQ(s.step_seconds, 1.5);
  EXPECT_EQ(s.bottleneck, Resource::memory);
}

/// The same machine with a GPU: ten times the FLOP, links of 20 bytes a second that make 25 together, no cores used.
HardwareProfile machine_with_device() {
  HardwareProfile hw = simple_machine();
  DeviceProfile& gpu = hw.device.emplace();
  gpu.gemm_flops_f32 = 1000;
  gpu.gemm_flops_bf16 = 2000;
  gpu.memory_bytes_per_second = 1000;
  gpu.adamw_parameters_per_second = 100;
  gpu.h2d_bytes_per_second = gpu.d2h_bytes_per_second = 20;
  gpu.both_bytes_per_second = 25;
  gpu.op_overhead_seconds = 0;
  gpu.optimizer_threads = 2;
  gpu.host_adamw_parameters_per_second = 10;
  gpu.host_norm_bytes_per_second = 40;
  return hw;
}

TEST(Simulate, ADeviceTakesNoCoresAndItsLinkIsSharedByBothDirections) {
  StepPlan plan = lanes_only();
  plan.lanes.push_back({LaneKind::d2h});
  HardwareProfile hw = machine_with_device();
  hw.cores = 1;
  compute_op(plan, 2000);             // 2 s of the device
  moved(plan, OpKind::copy, 1, 20);   // 1 s alone
  moved(plan, OpKind::copy, 5, 40);   // 2 s alone
  moved(plan, OpKind::update, 4, 0);  // of the only core
  plan.ops[3].numel = 20;             // 2 s
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[0].end, 2);
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 1.6) << "40 / 25 as long while both copy";
  EXPECT_DOUBLE_EQ(s.timeline[2].end, 1.6 + 1);
  EXPECT_DOUBLE_EQ(s.timeline[3].end, 2);
  EXPECT_DOUBLE_EQ(s.bound_seconds, 60.0 / 25);
  EXPECT_EQ(s.bottleneck, Resource::link_up);
  EXPECT_DOUBLE_EQ(s.resource_seconds[static_cast<std::size_t>(Resource::cores)], 2);
}

TEST(Simulate, OnlyLanesOfTheHostAreWoken) {
  StepPlan plan = lanes_only();
  HardwareProfile hw = machine_with_device();
  hw.device->handoff_seconds = 10;
  const OpId fetched = moved(plan, OpKind::copy, 1, 20);          // 1 s
  const OpId computed = compute_op(plan, 1000, {{fetched, false}});  // 1 s, the device waits for itself
  const OpId updated = moved(plan, OpKind::update, 4, 0, {{computed, false}});
  plan.ops[updated].numel = 10;             // 1 s, woken
  compute_op(plan, 1000, {{updated, false}});  // 1 s, put in by a thread that was woken
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[computed].end, 2);
  EXPECT_DOUBLE_EQ(s.timeline[updated].end, 2 + 10 + 1);
  EXPECT_DOUBLE_EQ(s.step_seconds, 13 + 10 + 1);
}

TEST(Simulate, UpdatesAndSumsOnADeviceTakeItsRates) {
  StepPlan plan = lanes_only();
  const HardwareProfile hw = machine_with_device();
  const OpId updated = moved(plan, OpKind::update, 0, 0);
  plan.ops[updated].numel = 300;
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 3);
  EXPECT_DOUBLE_EQ(simulate(plan, hw).resource_seconds[static_cast<std::size_t>(Resource::memory)], 0);
}

/// Of all groups, with what each of them has measured; a sum is added up in the device's memory.
TEST(Simulate, CollectivesOfADeviceFollowOneAnother) {
  StepPlan plan = lanes_only();
  plan.topology = Topology::of({{"dp", 2}, {"tp", 2}}, 0);
  plan.groups = {1, 2};
  plan.lanes.push_back({LaneKind::comm, false, -1});
  HardwareProfile hw = machine_with_device();
  hw.ranks = 4;
  hw.cores = 1;
  for (const std::int32_t group : {0, 1}) {
    const OpId op = moved(plan, group == 0 ? OpKind::all_gather : OpKind::reduce_scatter, 5, 20);
    plan.ops[op].group = group;
    plan.ops[op].collective = 0;
  }
  const double link = hw.device->h2d_bytes_per_second, memory = hw.device->memory_bytes_per_second;
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.timeline[0].end, 20 / link);
  EXPECT_DOUBLE_EQ(s.timeline[1].start, s.timeline[0].end);
  EXPECT_DOUBLE_EQ(s.timeline[1].end, 2 * 20 / link + 20 / memory);
  EXPECT_DOUBLE_EQ(s.bound_seconds, s.step_seconds) << "one queue, whatever the groups";
  EXPECT_EQ(s.bottleneck, Resource::network);
  EXPECT_DOUBLE_EQ(s.resource_seconds[static_cast<std::size_t>(Resource::cores)], 0);
}

TEST(Simulate, CyclicSteadyState) {
  StepPlan plan = lanes_only(true);
  moved(plan, OpKind::copy, 1, 20, {{1, true}});  // 2 s, after the compute of the step before last has freed its buffer
  compute_op(plan, 300, {{0, false}});            // 3 s
  EXPECT_NEAR(simulate(plan, simple_machine()).step_seconds, 5, 1e-9);
  plan.ops[0].waits.clear();  // double buffered: the copy hides
  EXPECT_NEAR(simulate(plan, simple_machine()).step_seconds, 3, 1e-9);
  EXPECT_NEAR(simulate(plan, simple_machine(), 6).step_seconds, 3, 1e-9);
}

/// Predicted step and bound where this many ranks share the machine.
std::pair<double, double> step_and_bound(const StepPlan& plan, HardwareProfile hw, int ranks) {
  hw.ranks = hw.ranks_of_device = ranks;
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.bound_seconds, time_bound(plan, hw));
  return {s.step_seconds, s.bound_seconds};
}
void expect_seconds(std::pair<double, double> got, double step, double bound) {
  EXPECT_NEAR(got.first, step, 1e-9);
  EXPECT_NEAR(got.second, bound, 1e-9);
}

/// Checkpoints go to the drive of the plan, which does the rest of its work meanwhile, or to one that they have alone;
/// all ranks' to the same. Steps that do not save do nothing.
TEST(Simulate, RanksShareTheDriveOfCheckpoints) {
  HardwareProfile hw = simple_machine();
  StepPlan plan = lanes_only();
  plan.lanes.push_back({LaneKind::save, false});
  moved(plan, OpKind::write, 3, 10);  // 2 s alone
  moved(plan, OpKind::save, 5, 20);
  for (const int ranks : {1, 2, 4}) expect_seconds(step_and_bound(plan, hw, ranks), 2 * ranks, 2 * ranks);
  hw.saving = Saving{.to_drive = true};
  for (const int ranks : {1, 2, 4}) expect_seconds(step_and_bound(plan, hw, ranks), 6 * ranks, 6 * ranks);
  hw.saving = Saving{.to_drive = false, .bytes_per_second = 4};  // 5 s alone
  for (const int ranks : {1, 2, 4}) {
    expect_seconds(step_and_bound(plan, hw, ranks), 5 * ranks, 5 * ranks);
    HardwareProfile shared = hw;
    shared.saving->replicas = 2;
    EXPECT_NEAR(step_and_bound(plan, shared, ranks).second, 2.5 * ranks, 1e-9) << "each writes a part";
  }
}

TEST(Simulate, RanksShareADrive) {
  const HardwareProfile hw = simple_machine();
  StepPlan plan = lanes_only();
  moved(plan, OpKind::read, 2, 10);  // 1 s alone
  moved(plan, OpKind::read, 2, 30);  // 3 s alone
  for (const int ranks : {1, 2, 3, 8}) expect_seconds(step_and_bound(plan, hw, ranks), 4 * ranks, 4 * ranks);
  HardwareProfile two = hw;
  two.ranks = 2;
  EXPECT_NEAR(simulate(plan, two).timeline[0].end, 2, 1e-9);
  EXPECT_EQ(simulate(plan, two).bottleneck, Resource::drive);
  // Reads beside writes, as DriveReadsAndWritesShare has them.
  plan = lanes_only();
  moved(plan, OpKind::read, 2, 40);
  moved(plan, OpKind::write, 3, 16);
  for (const int ranks : {1, 2, 3}) expect_seconds(step_and_bound(plan, hw, ranks), 6.4 * ranks, 6.4 * ranks);
}

TEST(Simulate, RanksShareCores) {
  const HardwareProfile hw = simple_machine();
  StepPlan plan = lanes_only();
  compute_op(plan, 100);  // 1 s, 2 threads of 4 cores
  expect_seconds(step_and_bound(plan, hw, 1), 1, 1);
  expect_seconds(step_and_bound(plan, hw, 2), 1, 1);
  expect_seconds(step_and_bound(plan, hw, 3), 2, 1.5);  // two cores have two threads, and every team ends with its last
  expect_seconds(step_and_bound(plan, hw, 4), 2, 2);
  // Ranks compute at their own rate as long as there are cores.
  HardwareProfile large = hw;
  large.cores = 16;
  expect_seconds(step_and_bound(plan, large, 8), 1, 1);
  plan = lanes_only();
  moved(plan, OpKind::load_tokens, 0, 10);  // 1 s, 1 thread
  expect_seconds(step_and_bound(plan, hw, 4), 1, 1);
  expect_seconds(step_and_bound(plan, hw, 8), 2, 2);
}

TEST(Simulate, RanksShareMemory) {
  StepPlan plan = lanes_only();
  plan.groups = {0};
  plan.lanes.push_back({LaneKind::comm, false, 0});
  compute_op(plan, 100);                                 // 1 s
  moved(plan, OpKind::all_gather, 5, 50, {{0, false}});  // 0.5 s alone
  plan.ops[1].collective = plan.ops[1].group = 0;
  const HardwareProfile hw = simple_machine();
  expect_seconds(step_and_bound(plan, hw, 1), 1.5, 1);
  expect_seconds(step_and_bound(plan, hw, 2), 2, 2 * 2.5 / 4);  // of the cores
  HardwareProfile large = hw;
  large.cores = 64;
  expect_seconds(step_and_bound(plan, large, 2), 2, 1);
  expect_seconds(step_and_bound(plan, large, 4), 3, 2);
  large.ranks = 4;
  EXPECT_EQ(simulate(plan, large).bottleneck, Resource::memory);
  EXPECT_DOUBLE_EQ(simulate(plan, large).timeline[1].start, 1) << "the ranks come to it together";
}

TEST(Simulate, RanksShareLinks) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::copy, 1, 20);  // 2 s alone
  compute_op(plan, 100);             // 1 s beside it
  const HardwareProfile hw = simple_machine();
  expect_seconds(step_and_bound(plan, hw, 1), 2, 2);
  HardwareProfile large = hw;
  large.cores = 64;
  expect_seconds(step_and_bound(plan, large, 2), 4, 4);
  expect_seconds(step_and_bound(plan, large, 5), 10, 10);
  large.ranks = 2;
  EXPECT_EQ(simulate(plan, large).bottleneck, Resource::link_down);
  EXPECT_DOUBLE_EQ(simulate(plan, large).timeline[1].end, 1);
}

/// What one direction of a GPU's link loses to the other, it loses however many ranks share it.
TEST(Simulate, RanksShareBothWaysOfADevicesLink) {
  StepPlan plan = lanes_only();
  plan.lanes.push_back({LaneKind::d2h});
  moved(plan, OpKind::copy, 1, 20);  // 1 s alone
  moved(plan, OpKind::copy, 5, 40);  // 2 s alone
  for (const int ranks : {1, 2, 4})
    expect_seconds(step_and_bound(plan, machine_with_device(), ranks), 2.6 * ranks, 2.4 * ranks);
}

/// A device that ranks share computes for them in turns; those that have one each wait for nobody.
TEST(Simulate, RanksShareADevice) {
  StepPlan plan = lanes_only();
  compute_op(plan, 300);
  HardwareProfile hw = machine_with_device();
  const auto [step, bound] = step_and_bound(plan, hw, 1);
  EXPECT_GT(bound, 0);
  expect_seconds(step_and_bound(plan, hw, 3), 3 * step, 3 * bound);
  hw.ranks = 3;
  EXPECT_NEAR(simulate(plan, hw).step_seconds, step, 1e-9);
}

/// Parts of cores too: an op is as slow as the one of its rank whose core is the most crowded.
TEST(Simulate, RanksHaveNoMoreCoresThanThereAre) {
  StepPlan plan = lanes_only();
  HardwareProfile hw = simple_machine();
  hw.cores = 3;
  hw.ranks = 2;
  hw.optimizer_threads = 1;
  hw.memory_bytes_per_second = 1e9;
  hw.drive.read_bytes_per_second = 30;
  hw.drive.write_bytes_per_second = 90;
  hw.drive.mixed_bytes_per_second = 120;
  hw.checksum_bytes_per_second = 100;
  moved(plan, OpKind::grad_norm, 1, 40);  // 1 s of a core
  moved(plan, OpKind::read, 2, 15);       // 0.3 of a core for 0.5 s
  moved(plan, OpKind::write, 3, 45);      // 0.9 of a core for 0.5 s
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.bound_seconds, 2 * (1 + 0.15 + 0.45) / 3);
  EXPECT_GE(s.end_seconds, s.bound_seconds * (1 - 1e-9));
}

TEST(Simulate, MeasuredSecondsAndDtypesGoByCostKey) {
  StepPlan plan = lanes_only();
  plan.cost_keys = {"mlp.forward b1 s8 bf16 t2", "mlp.forward b1 s8 f32 t2", "measured"};
  HardwareProfile hw = simple_machine();
  hw.op_seconds["measured"] = 7;
  for (int i = 0; i < 3; ++i) plan.ops[compute_op(plan, 200)].cost = i;
  EXPECT_DOUBLE_EQ(op_seconds(plan, plan.ops[0], hw), 1);
  EXPECT_DOUBLE_EQ(op_seconds(plan, plan.ops[1], hw), 2);
  EXPECT_DOUBLE_EQ(op_seconds(plan, plan.ops[2], hw), 7);
  EXPECT_DOUBLE_EQ(time_bound(plan, hw), 1 + 2 + 2) << "the bound takes FLOP at the best rate, not the measured time";
  EXPECT_DOUBLE_EQ(simulate(plan, hw).step_seconds, 10);
}

TEST(Simulate, PassBound) {
  StepPlan plan = lanes_only();
  moved(plan, OpKind::copy, 1, 50);  // 5 s, listed before the first pass and part of it
  compute_op(plan, 100);             // 1 s
  moved(plan, OpKind::copy, 1, 10);  // 1 s
  compute_op(plan, 200, {}, 1);      // 2 s: second pass
  const Simulation s = simulate(plan, simple_machine());
  EXPECT_DOUBLE_EQ(s.pass_bound_seconds, 6 + 2);
  EXPECT_DOUBLE_EQ(s.bound_seconds, 6);
}

/// All work of the iterations that were simulated lies before their end, however steps follow each other.
void expect_no_faster_than_its_bound(const StepPlan& plan, const HardwareProfile& hw) {
  const Simulation s = simulate(plan, hw);
  EXPECT_GT(s.bound_seconds, 0);
  EXPECT_GE(s.step_seconds, s.bound_seconds * (1 - 1e-9));
  EXPECT_GE(s.end_seconds, (s.timeline[0].iteration + 1) * s.bound_seconds * (1 - 1e-9));
  EXPECT_GE(s.pass_bound_seconds, s.bound_seconds * (1 - 1e-9));
}

/// Random sizes, and measured seconds of compute ops that may be quicker than the matmul rate.
StepPlan random_work(std::uint64_t seed) {
  StepPlan plan = random_plan(seed, {30, seed % 2 == 0 ? Topology{} : grid({2}), true, true});
  plan.cost_keys = {"quick bf16", "unknown"};
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    Op& op = plan.ops[i];
    op.bytes = (seed * 977 + i * 3571) % 20000;
    op.numel = op.bytes / 1000;
    const LaneKind lane = plan.lanes[op.lane].kind;
    if (lane == LaneKind::compute) {
      op.kind = OpKind::forward;
      op.flop = static_cast<double>(op.bytes) / 1000;
      op.cost = static_cast<std::int32_t>(i % 3) - 1;
    }
    if (lane == LaneKind::nvme_read) op.kind = OpKind::read;
  }
  finish(plan);
  return plan;
}

TEST(Simulate, NoStepIsFasterThanItsBound) {
  HardwareProfile host = simple_machine();
  host.h2d_bytes_per_second = 80000;
  host.memory_bytes_per_second = 200000;
  host.drive.read_bytes_per_second = 60000;
  host.drive.write_bytes_per_second = 20000;
  host.drive.mixed_bytes_per_second = 45000;
  host.cores = 3;
  host.op_seconds["quick bf16"] = 0.01;
  std::vector<HardwareProfile> machines(3, host);
  machines[0].drive.mixed_bytes_per_second = 20000;
  machines[2].drive.mixed_bytes_per_second = 79000;
  machines[1].drive.sync_seconds_per_byte = 1e-5;
  machines[2].drive.sync_seconds_per_byte = 1e-3;  // longer than all else
  // A GPU whose links were measured while others used them: both ways at once as much as either, more, and less.
  for (const double both : {80000.0, 130000.0, 30000.0}) {
    HardwareProfile& hw = machines.emplace_back(host);
    DeviceProfile& gpu = hw.device.emplace();
    gpu.gemm_flops_f32 = gpu.gemm_flops_bf16 = 100;
    gpu.h2d_bytes_per_second = 80000;
    gpu.d2h_bytes_per_second = 60000;
    gpu.both_bytes_per_second = both;
    gpu.host_adamw_parameters_per_second = 10;
    gpu.host_norm_bytes_per_second = 40000;
  }
  for (std::size_t m = 0; m < machines.size(); ++m)
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE("machine " + std::to_string(m) + ", seed " + std::to_string(seed));
      machines[m].ranks = static_cast<int>(1 + seed % 4);
      StepPlan plan = random_work(seed);
      expect_no_faster_than_its_bound(plan, machines[m]);
      plan.cyclic = false;
      derive_waits(plan);
      expect_no_faster_than_its_bound(plan, machines[m]);
    }
}

// The rate was measured while others computed, the op was not: that the op takes 2 s bounds the step, not 3 s.
TEST(Simulate, AnOpQuickerThanTheMatmulRateIsItsOwnBound) {
  StepPlan plan = lanes_only();
  plan.cost_keys = {"mlp.forward bf16"};
  HardwareProfile hw = simple_machine();
  hw.op_seconds[plan.cost_keys[0]] = 2;
  plan.ops[compute_op(plan, 600)].cost = 0;
  const Simulation s = simulate(plan, hw);
  EXPECT_DOUBLE_EQ(s.step_seconds, 2);
  EXPECT_DOUBLE_EQ(s.bound_seconds, 2);
}

TEST(Simulate, DriveBoundIsTheBestMixOfModes) {
  HardwareProfile hw = simple_machine();
  for (const double mixed : {6.0, 8.0, 12.0, 14.0}) {
    hw.drive.mixed_bytes_per_second = mixed;
    const planning::MixedRates rates = planning::mixed_rates(hw);
    EXPECT_LE(rates.read, hw.drive.read_bytes_per_second);
    EXPECT_LE(rates.write, hw.drive.write_bytes_per_second);
    EXPECT_DOUBLE_EQ(rates.read + rates.write, mixed);
    for (const double reads : {0.0, 1.0, 40.0})
      for (const double writes : {0.0, 1.0, 40.0}) {
        double best = 1e300;
        for (int i = 0; i <= 1000; ++i) {
          const double both = i * 0.02;
          const double r = reads - both * rates.read, w = writes - both * rates.write;
          if (r >= 0 && w >= 0)
            best = std::min(best, both + r / hw.drive.read_bytes_per_second + w / hw.drive.write_bytes_per_second);
        }
        EXPECT_LE(planning::drive_seconds(hw, reads, writes), best + 1e-9);
        EXPECT_GE(planning::drive_seconds(hw, reads, writes), best - 0.021);
      }
  }
}

}  // namespace
}  // namespace sluice
