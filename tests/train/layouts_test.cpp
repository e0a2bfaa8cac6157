// Arrangements that are not looked at are no better than those that are.
#include "src/train/request/layouts.h"

#include <gtest/gtest.h>

#include <set>

#include "src/device/device.h"

namespace sluice::test {
namespace {

/// Machines of four devices with a slow network between them: nothing of them is measured.
std::shared_ptr<const Cluster> small_cluster() {
  auto cluster = std::make_shared<Cluster>();
  cluster->path = "cluster";
  cluster->ranks_of_machine = 4;
  cluster->messages_inside = MessageRates{1e-6, 1e10, 1e10};
  cluster->messages_between = MessageRates{1e-5, 1e9, 1e9};
  ClusterDevice& device = cluster->device.emplace();
  device.name = "model";
  device.memory_bytes = std::uint64_t{64} << 20;
  device.flops_bf16 = device.flops_f32 = 2e10;  // slow, so that computing limits steps and bubbles count
  device.memory_bytes_per_second = 1e11;
  device.link_bytes_per_second = 1e10;
  device.efficiency = 0.8;
  cluster->host = {std::uint64_t{4} << 30, 16, 1e11};
  return cluster;
}

RunConfig request(int ranks) {
  RunConfig c;
  c.model = "llama-tiny";
  c.sequence = 64;
  c.batch = 32;
  c.ranks = ranks;
  c.cluster = small_cluster();
  c.ranks_of_node = c.cluster->ranks_of_machine;
  c.device = "cuda";
  c.assume = true;
  return c;
}

bool can_plan_for_gpus() { return kernel_sizes_of("cuda").ok(); }

TEST(Layouts, PrunedOnesAreNoQuicker) {
  if (!can_plan_for_gpus()) GTEST_SKIP() << "built without CUDA";
  const RunConfig config = request(8);
  const LayoutEffort patient{.prunes = true, .estimating_seconds = 1e9, .searching_seconds = 1e9};
  LayoutEffort exhaustive = patient;
  exhaustive.prunes = false;
  const auto pruned = find_layouts(config, {}, {}, patient), all = find_layouts(config, {}, {}, exhaustive);
  ASSERT_TRUE(pruned.ok() && all.ok());
  EXPECT_GT(pruned->bounded, 0) << "nothing was left out";
  EXPECT_EQ(all->bounded, 0);
  EXPECT_EQ(pruned->not_looked_at + all->not_looked_at, 0);
  ASSERT_GE(all->found.size(), searched_max);
  for (std::size_t i = 0; i < searched_max; ++i) {
    EXPECT_TRUE(pruned->found[i].is_searched);
    EXPECT_EQ(pruned->found[i].seconds, all->found[i].seconds) << i;
  }
}

/// On a roomy device, and on one with little memory, where parameters and sums come with every group of micro-batches.
TEST(Layouts, NoneIsQuickerThanItsBound) {
  if (!can_plan_for_gpus()) GTEST_SKIP() << "built without CUDA";
  for (const std::uint64_t device_memory : {std::uint64_t{64} << 20, std::uint64_t{36} << 20}) {
    RunConfig config = request(8);
    config.device_memory = device_memory;
    LayoutWish wish;
    wish.micro_batch = 1;
    const auto all =
        find_layouts(config, wish, {}, {.prunes = false, .estimating_seconds = 1e9, .searching_seconds = 0});
    ASSERT_TRUE(all.ok()) << all.error().message;
    ASSERT_GE(all->found.size(), searched_max) << device_memory;
    double closest = 0;
    for (const Layout& l : all->found) {
      const auto run = prepare_to_estimate(l.config, Purpose::train, {});
      ASSERT_TRUE(run.ok()) << run.error().message;
      const double share = least_seconds(**run) / l.seconds;
      EXPECT_LE(share, 1.0001) << l.config.stages << " x " << batch_ranks(l.config) << " x " << l.config.context
                               << " x " << l.config.tensor << " in " << device_memory;
      closest = std::max(closest, share);
    }
    EXPECT_GT(closest, 0.3) << "a bound that says nothing";
  }
}

/// Where there is no time to search them all, the others of the quickest are proven on samples, and keep the budgets.
TEST(Layouts, WhatIsNotSearchedIsProvenOnASample) {
  if (!can_plan_for_gpus()) GTEST_SKIP() << "built without CUDA";
  RunConfig config = request(8);
  config.batch = 256;
  config.micro_batch = 1;
  LayoutWish wish;
  wish.stages = 2;
  wish.micro_batch = 1;
  const auto some = find_layouts(config, wish, {}, {.searching_seconds = 0});
  ASSERT_TRUE(some.ok()) << some.error().message;
  ASSERT_GE(some->found.size(), searched_max);
  for (std::size_t i = 0; i < some->found.size(); ++i) {
    const Layout& l = some->found[i];
    EXPECT_EQ(l.is_searched, i == 0) << i;
    EXPECT_EQ(l.is_proven, i < searched_max) << i;
    if (!l.is_proven) continue;
    const auto run = prepare_to_estimate(l.config, Purpose::train, {});
    ASSERT_TRUE(run.ok()) << run.error().message;
    EXPECT_TRUE(within(l.needs, (*run)->workload.budget_bytes)) << i;
    EXPECT_GT(l.needs.device, 0u) << i;
    EXPECT_GE(l.seconds, 0.999 * least_seconds(**run)) << i;
  }
}

/// Micro-batches are looked for too, unless they are given.
TEST(Layouts, MicroBatchesAreLookedFor) {
  if (!can_plan_for_gpus()) GTEST_SKIP() << "built without CUDA";
  const auto sizes = [](const Layouts& layouts) {
    std::set<int> all;
    for (const Layout& l : layouts.found) all.insert(l.config.micro_batch);
    return all;
  };
  const auto open = find_layouts(request(4), {}, {}, {.prunes = false, .searching_seconds = 0});
  LayoutWish wish;
  wish.micro_batch = 2;
  const auto given = find_layouts(request(4), wish, {});
  ASSERT_TRUE(open.ok() && given.ok());
  EXPECT_EQ(sizes(*open), (std::set<int>{1, 2, 4}));
  EXPECT_EQ(sizes(*given), std::set<int>{2});
  for (const Layout& l : open->found) EXPECT_TRUE(!l.keeps_bits || l.config.micro_batch == 1);
}

}  // namespace
}  // namespace sluice::test
