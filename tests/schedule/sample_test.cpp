// A few layers and micro-batches stand for a large pipeline.
#include "src/schedule/sample.h"

#include <gtest/gtest.h>

#include "src/schedule/estimate.h"
#include "src/schedule/quick.h"

namespace sluice::test {
namespace {

/// Within which a sample tells what all layers and micro-batches do: of seconds, where computing limits the step, and
/// of bytes.
constexpr double time_tolerance = 0.03, byte_tolerance = 0.12;

HardwareProfile with_gpu() {
  HardwareProfile hw;
  hw.cores = 16;
  hw.memory_bytes_per_second = 1e11;
  hw.ranks_apart = hw.messages_of_devices = true;
  hw.messages_inside = hw.messages_between = MessageRates{1e-5, 2e11, 2e11};
  hw.device.emplace().optimizer_threads = 8;
  hw.device->gemm_flops_bf16 = 5e12;
  hw.device->h2d_bytes_per_second = hw.device->d2h_bytes_per_second = 2.4e10;
  hw.device->both_bytes_per_second = 4e10;
  return hw;
}

struct Large {
  ModelSpec model;
  Workload work;
  ScheduleWish wish;
};

void make(Large& l, PipelineChoice pipeline, RankId stages, int micro_batches) {
  ModelConfig config;
  config.hidden = 1024;
  config.ffn = 4096;
  config.heads = config.kv_heads = 16;
  config.head_dim = 64;
  config.vocabulary = 2048;
  config.layers = 48;
  l.model = build_model(config);
  l.work.model = &l.model;
  l.work.shape = {1, 1024};
  l.work.micro_batches = micro_batches;
  l.work.exchanges = true;
  l.work.topology = topology_of({stages, 2});
  l.work.splits_backward = splits_backward(pipeline.order);
  l.work.device = "model";
  l.work.budget_bytes = {std::uint64_t{8} << 30, std::uint64_t{64} << 30, 1};
  l.wish.pipeline = pipeline;
  l.wish.update = UpdateOrder::ahead;
}

const PipelineChoice orders[] = {{PipelineOrder::one_forward_one_backward, 1},
                                 {PipelineOrder::interleaved, 2},
                                 {PipelineOrder::zb_h1, 1},
                                 {PipelineOrder::zb_v, 2}};

TEST(Sample, TellsTheTimeOfAPipeline) {
  for (const PipelineChoice& pipeline : orders) {
    const std::string name = pipeline_order_names[static_cast<std::size_t>(pipeline.order)];
    Large l;
    make(l, pipeline, 4, 128);
    const HardwareProfile hw = with_gpu();
    const Estimator estimator(l.work, hw, pipeline);
    ASSERT_FALSE(estimator.is_exact());
    const auto quick = quick_schedule(l.work, l.wish, hw);
    ASSERT_TRUE(quick.has_value()) << name;
    EXPECT_EQ(quick->schedule.units.size(), l.model.units.size());
    const StepEstimate exact = estimator.exact(quick->schedule);
    EXPECT_LT(4 * quick->estimate.ops, exact.ops) << name << ": hardly a sample";
    EXPECT_NEAR(quick->estimate.step_seconds / exact.step_seconds, 1, time_tolerance) << name;
    EXPECT_NEAR(estimator.estimate(quick->schedule).step_seconds / exact.step_seconds, 1, time_tolerance) << name;
  }
}

TEST(Sample, TellsTheMemoryOfAPipeline) {
  for (const PipelineChoice& pipeline : orders) {
    Large l;
    make(l, pipeline, 4, 128);
    Schedule s = frugal_schedule(l.work, pipeline);
    for (UnitChoice& c : s.units) {
      c.parameter_home = c.state_home = c.gradient = c.boundary = Place::host;
      c.accumulator = Place::device;
      c.resident = true;
    }
    const TierBytes all = live_needs(l.work, s);
    // Budgets of just so much leave the sample as much as it takes.
    l.work.budget_bytes = {all.device, all.host, 1};
    const Sample sample(l.work, pipeline);
    const Workload room = sample.with_room(s, Sample::Kind::keeping);
    const TierBytes few = live_needs(sample.workload(sample.lengths(s).few), sample.of(s));
    for (const Tier t : {Tier::device, Tier::host}) {
      EXPECT_LT(2 * few.of(t), all.of(t)) << "hardly a sample";
      EXPECT_NEAR(static_cast<double>(room.budget_bytes[static_cast<std::size_t>(t)]) / static_cast<double>(few.of(t)),
                  1, byte_tolerance)
          << pipeline_order_names[static_cast<std::size_t>(pipeline.order)] << ", "
          << tier_names[static_cast<std::size_t>(t)];
    }
  }
}

TEST(Sample, OfASmallWorkloadIsItself) {
  Large l;
  make(l, {}, 2, 2);
  const Sample sample(l.work);
  EXPECT_TRUE(sample.is_whole());
  const Schedule s = frugal_schedule(l.work);
  EXPECT_EQ(sample.of(s), s);
}

/// What is found on a sample keeps the budgets of the whole to the page.
TEST(Sample, SchedulesKeepTheBudgetsOfTheWhole) {
  for (const std::uint64_t device : {std::uint64_t{1} << 29, std::uint64_t{1} << 30, std::uint64_t{3} << 30}) {
    Large l;
    make(l, orders[0], 4, 128);
    l.work.budget_bytes[0] = device;
    const SearchResult found = search_quickly(l.work, l.wish, with_gpu());
    ASSERT_TRUE(found.fits) << device;
    EXPECT_TRUE(within(run_needs(l.work, found.schedule), l.work.budget_bytes)) << device;
    EXPECT_EQ(found.needs, run_needs(l.work, found.schedule));
  }
}

}  // namespace
}  // namespace sluice::test
