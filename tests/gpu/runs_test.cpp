// Whole training runs on a GPU: what the CPU learns, and the same bits wherever the data lie. They skip without one.
#include "tests/equivalence/runs.h"

#include <cstdlib>
#include <random>

#include "src/device/device.h"

namespace sluice::test {
namespace {

// The model of a device takes a second for a step (tests/machine); SLUICE_SHORT=1 is for runs under compute-sanitizer.
#ifdef SLUICE_SIMT
const bool short_runs = true;
#else
const bool short_runs = std::getenv("SLUICE_SHORT") != nullptr;
#endif
const std::int64_t steps = short_runs ? 3 : 20;
const std::uint64_t schedules = short_runs ? 4 : 20;

class GpuRuns : public testing::TestWithParam<Dtype> {
 protected:
  void SetUp() override {
    const auto device = Device::open("cuda");
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    bench_.know_device((*device)->kind());
  }
  RunConfig config(const char* device = "cuda") const {
    RunConfig c = bench_.config(2, false, GetParam(), steps);
    c.device = device;
    return c;
  }
  static Schedule schedule(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    Schedule s;
    s.prefetch = any(4);
    s.lag = std::min(s.prefetch, 1);
    s.tiles_in_flight = 1 + any(4);
    s.update_ahead = any(2) == 0;
    s.group = 1 + any(4);
    s.hold = any(2) == 0;
    s.gradients_ahead = any(2) == 0;
    s.tile_numel = any(2) == 0 ? 4096 : 1u << 15;
    for (int u = 0; u < 6; ++u) {
      UnitChoice c;
      c.resident = any(2) == 0;
      c.parameter_home = any(2) == 0 ? Place::host : Place::nvme;
      c.state_home = any(2) == 0 ? Place::host : Place::nvme;
      c.gradient = any(2) == 0 ? Place::host : Place::nvme;
      c.saved = static_cast<Saved>(any(4));
      c.boundary = static_cast<Place>(any(3));
      c.accumulator = static_cast<Place>(any(3));
      c.update_on_device = any(2) == 0;
      c.late = !s.update_ahead && u < 5 && any(2) == 0;
      s.units.push_back(c);
    }
    return s;
  }

  Bench bench_;
};

TEST_P(GpuRuns, LearnWhatTheCpuLearns) {
  for (const bool documents : {false, true}) {
    std::vector<Outcome> outcomes;
    for (const char* device : {"cpu", "cuda"}) {
      RunConfig c = config(device);
      c.optimizer.clip_norm = 1;
      if (documents) c.data = bench_.packed_documents();
      if (documents) c.gradient_dtype = Dtype::bf16;
      c.document_mask = documents;
      const auto prepared = prepared_with(c, schedule(1));
      ASSERT_TRUE(prepared);
      outcomes.push_back(run(*prepared));
      ASSERT_EQ(outcomes.back().losses.size(), static_cast<std::size_t>(steps));
    }
    const double tolerance = GetParam() == Dtype::f32 ? 1e-4 : 2e-2;
    for (std::size_t i = 0; i < outcomes[0].losses.size(); ++i)
      EXPECT_NEAR(outcomes[1].losses[i], outcomes[0].losses[i], tolerance * outcomes[0].losses[i]) << "step " << i + 1;
    EXPECT_EQ(outcomes[1].moved.h2d, outcomes[0].moved.h2d);
    EXPECT_EQ(outcomes[1].moved.d2h, outcomes[0].moved.d2h);
  }
}

TEST_P(GpuRuns, DoNotDependOnTheSchedule) {
  const auto prepared = prepared_with(config(), schedule(1));
  ASSERT_TRUE(prepared);
  const Outcome reference = run(*prepared);
  for (std::uint64_t seed = 2; seed <= schedules; ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    RunConfig c = config();
    c.delay_seed = seed % 3;
    const auto other = prepared_with(c, schedule(seed));
    ASSERT_TRUE(other);
    const Outcome out = run(*other);
    expect_same(reference, out);
    EXPECT_EQ(out.device_peak, other->arena_of_machine(Tier::device).arena_bytes);
    if (HasFailure()) return;
  }
}

/// In blocks of 8 bits they are the same codes wherever they wait, and runs learn what those on the CPU learn.
TEST_P(GpuRuns, ParkActivationsInFewBits) {
  const auto run_of = [&](const char* device, ActivationDtype format, Saved saved, Place boundary) {
    RunConfig c = config(device);
    c.activation_dtype = format;
    Schedule s = schedule(1);
    s.group = 2;
    s.hold = true;
    for (UnitChoice& unit : s.units) {
      unit.saved = saved;
      unit.boundary = boundary;
    }
    const auto prepared = prepared_with(c, s);
    EXPECT_TRUE(prepared);
    const Outcome out = run(*prepared);
    EXPECT_EQ(out.device_peak, prepared->arena_of_machine(Tier::device).arena_bytes);
    return out;
  };
  // Runs on the model of a card take seconds.
  const ActivationDtype format = GetParam() == Dtype::bf16 ? ActivationDtype::int8 : ActivationDtype::fp8;
  const Outcome host = run_of("cuda", format, Saved::host, Place::nvme),
                drive = run_of("cuda", format, Saved::nvme, Place::host),
                cpu = run_of("cpu", format, Saved::host, Place::nvme);
  expect_same(host, drive);
  EXPECT_EQ(host.moved.h2d, cpu.moved.h2d);
  EXPECT_EQ(host.moved.d2h, cpu.moved.d2h);
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(host.losses[i], cpu.losses[i], 2e-2 * cpu.losses[i]) << "step " << i + 1;
}

/// Slice by slice, wherever keys and values wait meanwhile.
TEST_P(GpuRuns, TakeSequencesInSlices) {
  const auto run_of = [&](const char* device, Place blocks, Saved saved) {
    RunConfig c = config(device);
    c.slices = 2;
    c.steps = std::min<std::int64_t>(steps, 6);
    Schedule s = schedule(1);
    s.group = 2 * 2;
    for (UnitChoice& unit : s.units) {
      unit.saved = saved;
      unit.blocks = blocks;
    }
    const auto prepared = prepared_with(c, s);
    EXPECT_TRUE(prepared);
    const Outcome out = run(*prepared);
    EXPECT_EQ(out.device_peak, prepared->arena_of_machine(Tier::device).arena_bytes);
    return out;
  };
  const Outcome host = run_of("cuda", Place::host, Saved::recompute),
                cpu = run_of("cpu", Place::host, Saved::recompute);
  expect_same(host, run_of("cuda", Place::device, Saved::keep));
  EXPECT_EQ(host.moved.h2d, cpu.moved.h2d);
  EXPECT_EQ(host.moved.d2h, cpu.moved.d2h);
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(host.losses[i], cpu.losses[i], 2e-2 * cpu.losses[i]) << "step " << i + 1;
}

/// They meet in host memory, which changes no bit, however parameters and states are shared; nor does it where updates
/// on GPU and CPU read gradients that were rounded.
TEST_P(GpuRuns, RanksShareADevice) {
  RunConfig one = config();
  one.lots = 2;
  one.gradient_dtype = Dtype::bf16;
  const auto alone = prepared_with(one, schedule(1));
  ASSERT_TRUE(alone);
  const Outcome reference = run(*alone);
  for (const int shard_group : {0, 1}) {
    SCOPED_TRACE(shard_group);
    RunConfig c = one;
    c.lots = 0;
    c.ranks = 2;
    c.shard_group = shard_group;
    Schedule s = schedule(2 + static_cast<std::uint64_t>(shard_group));
    s.group = 1;
    for (UnitChoice& unit : s.units) unit.resident = shard_group == 1;
    const auto shared = prepared_with(c, s);
    ASSERT_TRUE(shared);
    const Outcome out = run(*shared);
    expect_same(reference, out);
    EXPECT_EQ(out.device_peak, shared->arena_of_machine(Tier::device).arena_bytes);
    EXPECT_EQ(out.host_peak, shared->arena_of_machine(Tier::host).arena_bytes);
  }
}

/// As stages and as parts of sublayers: what they give each other goes through host memory.
TEST_P(GpuRuns, StagesAndPartsShareADevice) {
  const auto run_of = [&](int stages, int tensor, PipelineChoice pipeline = {}, int context = 1, int few_bits = 1,
                          ContextAttention attention = ContextAttention::ulysses) {
    RunConfig c = config();
    c.lots = few_bits;
    c.stages = stages;
    c.tensor = tensor;
    c.context = context;
    c.context_attention = attention;
    c.ranks = stages * tensor * context * few_bits;
    if (few_bits > 1) {
      c.gathers = RankGathers::int8;
      c.sums = RankSums::int4;
    }
    c.pipeline = pipeline;
    Schedule s = schedule(2);
    s.group = 1;
    s.pipeline = pipeline;
    for (UnitChoice& unit : s.units) {
      unit.resident = unit.resident && few_bits == 1;
      unit.late = unit.late && stages == 1;
    }
    for (int stage = 1; stage < stages; ++stage) s.cut.push_back(static_cast<UnitId>(s.units.size()) * stage / stages);
    const auto prepared = prepared_with(c, s);
    EXPECT_TRUE(prepared);
    const Outcome out = run(*prepared);
    EXPECT_EQ(out.device_peak, prepared->arena_of_machine(Tier::device).arena_bytes);
    EXPECT_EQ(out.host_peak, prepared->arena_of_machine(Tier::host).arena_bytes);
    return out;
  };
  // Runs on the model of a card take seconds: half of them with each type.
  const Outcome parts = run_of(1, 2);
  if (GetParam() == Dtype::bf16) {
    const Outcome few = run_of(1, 1, {}, 1, 2);
    for (std::size_t i = 0; i < parts.losses.size(); ++i)
      EXPECT_NEAR(few.losses[i], parts.losses[i], 0.01 * parts.losses[i]) << "step " << i + 1;
    return expect_same(parts, run_of(2, 2));
  }
  const Outcome one = run_of(1, 1);
  expect_same(one, run_of(2, 1, {PipelineOrder::zb_h1, 1}));
  const Outcome slices = run_of(1, 1, {}, 2), ring = run_of(1, 1, {}, 2, 1, ContextAttention::ring);
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(parts.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(slices.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(ring.losses[i], one.losses[i], 1e-5 * one.losses[i]) << "step " << i + 1;
  }
}

TEST_P(GpuRuns, MeasureNoCard) {
  std::string said;
  const auto prepared = prepare_with(config(), Purpose::train, schedule(1), nullptr,
                                     [&](const std::string& what) { said += what + "\n"; });
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(said.find("(once, "), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(Models, GpuRuns, testing::Values(Dtype::bf16, Dtype::f32),
                         [](const auto& p) { return dtype_name(p.param); });

TEST(Devices, UnknownNamesAreRefusedInOneLine) {
  for (const char* name : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", ""}) {
    const auto device = Device::open(name);
    ASSERT_FALSE(device.ok()) << name;
    EXPECT_EQ(device.error().code, ErrorCode::bad_request);
    EXPECT_EQ(device.error().message.find('\n'), std::string::npos);
  }
  EXPECT_TRUE(Device::open("cpu").ok());
  const auto far = Device::open("cuda:999");
  ASSERT_FALSE(far.ok());
  EXPECT_EQ(far.error().code, ErrorCode::bad_request) << far.error().message;
}

}  // namespace
}  // namespace sluice::test
