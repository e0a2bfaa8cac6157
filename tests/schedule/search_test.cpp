// What the search prefers, and what it compares with.
#include "src/schedule/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/model/kernel_sizes.h"
#include "src/schedule/both_passes.h"
#include "src/schedule/build.h"
#include "src/schedule/byte_law.h"
#include "src/schedule/estimate.h"
#include "src/schedule/knobs.h"
#include "src/schedule/recipe.h"
#include "src/schedule/smallest.h"

namespace sluice::test {
namespace {

HardwareProfile with_gpu() {
  HardwareProfile hw;
  hw.cores = 16;
  hw.memory_bytes_per_second = 1e11;
  hw.drive.read_bytes_per_second = hw.drive.write_bytes_per_second = hw.drive.mixed_bytes_per_second = 5e9;
  hw.device.emplace().optimizer_threads = 8;
  hw.device->h2d_bytes_per_second = hw.device->d2h_bytes_per_second = 2.4e10;
  hw.device->both_bytes_per_second = 4e10;
  return hw;
}

Workload workload(const ModelSpec& model, std::int64_t sequence, int micro_batches) {
  Workload w;
  w.model = &model;
  w.shape = {1, sequence};
  w.micro_batches = micro_batches;
  return w;
}

ModelSpec preset_model(const char* name) {
  auto config = preset_config(name);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return build_model(*config);
}

// As it was met: a run that host memory has room for wrote 114 GB a step to the drive, and was no faster for it.
TEST(Search, WearsNoDriveWhereThatGainsNothing) {
  const ModelSpec model = preset_model("gpt2-124m");
  Workload w = workload(model, 1024, 8);
  w.budget_bytes = {std::uint64_t{1} << 30, std::uint64_t{64} << 30, std::uint64_t{500} << 30};
  ScheduleWish wish;
  wish.update = UpdateOrder::ahead;
  const SearchResult found = search_schedule(w, wish, with_gpu());
  ASSERT_TRUE(found.fits);
  EXPECT_EQ(found.drive_write_bytes, 0u);
  EXPECT_EQ(found.needs.nvme, 0u);
  // Without a drive nothing is faster.
  w.budget_bytes[static_cast<std::size_t>(Tier::nvme)] = 1;
  const SearchResult without = search_schedule(w, wish, with_gpu());
  ASSERT_TRUE(without.fits);
  EXPECT_LE(found.predicted_seconds, 1.006 * without.predicted_seconds);
}

TEST(Search, SendsSavedActivationsToHostMemoryBeforeTheDrive) {
  const ModelSpec model = preset_model("llama-25m");
  Workload w = workload(model, 512, 8);
  w.budget_bytes = {std::uint64_t{256} << 20, std::uint64_t{16} << 30, std::uint64_t{500} << 30};
  HardwareProfile hw = with_gpu();
  hw.device->gemm_flops_bf16 = 1e12;  // computing again takes longer than the way to the host and back
  const SearchResult found = search_schedule(w, {}, hw);
  ASSERT_TRUE(found.fits);
  EXPECT_EQ(std::ranges::count(found.schedule.units, Saved::nvme, &UnitChoice::saved), 0);
  EXPECT_EQ(found.drive_write_bytes, 0u);
}

/// All that waits does so in host memory, but for inputs, which stay on the device.
Schedule with_sums_in_host(const Workload& w, bool ahead) {
  Schedule s = frugal_schedule(w);
  s.hold = true;
  s.prefetch = 2;
  s.lag = 1;
  s.tiles_in_flight = 4;
  s.gradients_ahead = ahead;
  for (UnitChoice& c : s.units) {
    c.parameter_home = c.state_home = c.gradient = c.accumulator = Place::host;
    c.boundary = Place::device;
  }
  return s;
}

std::uint64_t saved_on(const Schedule& s, Saved place) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(s.units, [&](const UnitChoice& c) { return c.saved == place || c.core == place; }));
}

// As it was met: states left host memory no room for the inputs of all sublayers, so that all that they save was made
// again, though the drive was there.
TEST(Search, TheDriveTakesWhatHostMemoryHasNoRoomFor) {
  const ModelSpec model = preset_model("llama-25m");
  Workload w = workload(model, 512, 8);
  HardwareProfile hw;
  hw.gemm_flops_bf16 = 1e10;  // computing again takes long
  ScheduleWish wish;
  wish.group = 8;
  wish.update = UpdateOrder::ahead;
  const auto balanced = [&](std::uint64_t drive) {
    w.budget_bytes = {std::uint64_t{100} << 20, std::uint64_t{40} << 20, drive};
    for (const Cook::Dish& dish : Cook(w, wish, &hw).dishes(8, true))
      if (dish.recipe.balanced) return dish.schedule;
    ADD_FAILURE() << "nothing is balanced";
    return Schedule();
  };
  const Schedule roomy = balanced(std::uint64_t{1} << 40);
  const std::uint64_t all = saved_on(roomy, Saved::nvme);
  EXPECT_GT(all, model.units.size() / 3);
  // Where the drive is short, as much as it has room for.
  const std::uint64_t needs = live_needs(w, roomy).nvme;
  Schedule made_again = roomy;
  for (UnitChoice& c : made_again.units)
    if (c.saved == Saved::nvme) c.saved = Saved::recompute, c.core.reset();
  const std::uint64_t least = live_needs(w, made_again).nvme;
  ASSERT_LT(least, needs);
  Schedule half = balanced((least + needs) / 2);
  EXPECT_GT(saved_on(half, Saved::nvme), all / 4);
  EXPECT_LT(saved_on(half, Saved::nvme), all);
  EXPECT_LE(live_needs(w, half).nvme, (least + needs) / 2);
  // Gradients that wait on the device are moved there when activations have their places.
  for (UnitChoice& c : half.units) c.gradient = Place::nvme;
  EXPECT_LE(live_needs(w, half).nvme, (least + needs) / 2);
  EXPECT_GT(live_needs(w, half).nvme, least + (needs - least) / 3);
}

/// Activations and gradients have the device's memory in turn.
TEST(Search, GradientsWaitOnTheDeviceAndNotOnTheDrive) {
  const ModelSpec model = preset_model("llama-25m");
  Workload w = workload(model, 128, 4);
  w.budget_bytes = {std::uint64_t{100} << 20, std::uint64_t{48} << 20, std::uint64_t{500} << 30};
  ScheduleWish wish;
  wish.update = UpdateOrder::ahead;
  const HardwareProfile hw = with_gpu();
  const SearchResult found = search_schedule(w, wish, hw);
  ASSERT_TRUE(found.fits);
  const auto waits_on = [](Place place) { return [place](const UnitChoice& c) { return c.gradient == place; }; };
  const auto& units = found.schedule.units;
  const auto on_device = std::ranges::count_if(units, waits_on(Place::device));
  EXPECT_GT(on_device, std::ssize(units) / 4);
  EXPECT_TRUE(std::ranges::is_partitioned(units, waits_on(Place::device))) << "those of the first units";
  EXPECT_TRUE(within(found.needs, w.budget_bytes));
  // Where they lie on the drive instead, steps write more and take longer.
  Schedule without = found.schedule;
  for (UnitChoice& c : without.units)
    if (c.gradient == Place::device) c.gradient = Place::nvme;
  EXPECT_LT(found.drive_write_bytes, byte_law_of_all(w, without).nvme_write);
  EXPECT_LT(found.predicted_seconds, Estimator(w, hw, {}).exact(without).step_seconds);
  wish.carries = false;
  const SearchResult not_so = search_schedule(w, wish, hw);
  ASSERT_TRUE(not_so.fits);
  EXPECT_TRUE(std::ranges::none_of(not_so.schedule.units, waits_on(Place::device)));
}

// As it was met on an H100: the device computed nothing while one unit's sum of gradients left and the next one's came.
TEST(Search, SumsOfGradientsTravelWhileTheDeviceComputes) {
  const ModelSpec model = preset_model("llama-125m");
  Workload w = workload(model, 2048, 4);
  w.shape.batch = 2;
  HardwareProfile hw = with_gpu();
  hw.device->gemm_flops_bf16 = 1e14;
  const Schedule behind = with_sums_in_host(w, false), ahead = with_sums_in_host(w, true);
  const Estimator estimator(w, hw);
  const double late = estimator.exact(behind).step_seconds, early = estimator.exact(ahead).step_seconds;
  EXPECT_LT(early, 0.96 * late);
  // It takes room for one or two sums more, of inner units.
  const std::uint64_t more = live_needs(w, ahead).device - live_needs(w, behind).device;
  EXPECT_GT(more, 0u);
  EXPECT_LE(more, 4 * (model.units[1].numel + model.units[2].numel));
}

// As it was met: 24 GiB and 112 GiB have room for the inputs of llama-7b's sublayers between them, and neither alone
// has.
TEST(Search, InputsFillTheDeviceAndHostMemoryTogether) {
  const ModelSpec model = preset_model("llama-125m");
  Workload w = workload(model, 2048, 8);
  w.shape.batch = 2;
  // The workspaces of this CPU would decide how much room is left.
  KernelSizes sizes = cpu_kernel_sizes;
  sizes.gemm_bytes = [](std::int64_t, std::int64_t, std::int64_t, Dtype, Dtype) { return std::uint64_t{8} << 20; };
  sizes.attention_bytes = [](const kernels::AttentionShape&, Dtype) { return std::uint64_t{8} << 20; };
  w.kernels = &sizes;
  ScheduleWish wish;
  wish.update = UpdateOrder::ahead;
  wish.group = 8;
  Schedule on_device = with_sums_in_host(w, false);
  on_device.group = 8;
  on_device.prefetch = on_device.lag = 1;
  Schedule in_host = on_device;
  for (UnitChoice& c : in_host.units) c.boundary = Place::host;
  const TierBytes there = live_needs(w, on_device), here = live_needs(w, in_host);
  // Half of the inputs' bytes on each side.
  w.budget_bytes = {(here.device + there.device) / 2, (here.host + there.host) / 2, 1};
  const HardwareProfile hw = with_gpu();
  const SearchResult found = search_schedule(w, wish, hw);
  ASSERT_TRUE(found.fits);
  const auto kept = std::ranges::count(found.schedule.units, Place::device, &UnitChoice::boundary);
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, std::ssize(found.schedule.units));
  const double frugal = Estimator(w, hw).exact(*FrugalFamily(w, wish).fit(budgets_of(w))).step_seconds;
  EXPECT_LT(found.predicted_seconds, 0.97 * frugal);
}

// A few layers stand for all of them.
TEST(Search, EstimatesComeCloseToWhatAllLayersTake) {
  const ModelSpec model = preset_model("llama-7b");
  const Workload w = workload(model, 1024, 4);
  for (const bool gpu : {false, true}) {
    const HardwareProfile hw = gpu ? with_gpu() : HardwareProfile{};
    const Estimator estimator(w, hw);
    ASSERT_FALSE(estimator.is_exact());
    Schedule s = frugal_schedule(w);
    s.group = 4;
    s.hold = true;
    s.prefetch = s.lag = 1;
    s.tiles_in_flight = 4;
    s.tile_numel = tile_for(w, 1u << 18, 2048);
    for (UnitChoice& c : s.units) {
      c.boundary = c.accumulator = Place::device;
      c.gradient = Place::host;
    }
    const double all = estimator.exact(s).step_seconds, few = estimator.estimate(s).step_seconds;
    EXPECT_NEAR(few / all, 1, 0.05) << (gpu ? "gpu" : "cpu");
  }
}

// Where the drive has about as much to do as the device, updates in one pass leave it idle in the other.
TEST(Search, UpdatesComeInBothPassesWhereThatIsQuicker) {
  const ModelSpec model = preset_model("llama-25m");
  Workload w = workload(model, 512, 4);
  w.budget_bytes = {std::uint64_t{256} << 20, std::uint64_t{160} << 20, std::uint64_t{500} << 30};
  w.durable = true;
  HardwareProfile hw = with_gpu();
  hw.drive.read_bytes_per_second = hw.drive.write_bytes_per_second = hw.drive.mixed_bytes_per_second = 2e9;
  hw.device->gemm_flops_bf16 = 1.5e12;
  ScheduleWish ahead, back, both;
  ahead.update = UpdateOrder::ahead;
  back.update = both.update = UpdateOrder::speculative;
  back.both_orders = both.both_orders = true;
  both.mixes = true;
  const SearchResult one = search_schedule(w, ahead, hw), other = search_schedule(w, back, hw),
                     found = search_schedule(w, both, hw);
  ASSERT_TRUE(one.fits && other.fits && found.fits);
  EXPECT_TRUE(found.schedule.mixes());
  EXPECT_FALSE(other.schedule.mixes());
  EXPECT_LT(found.predicted_seconds, 0.95 * std::min(one.predicted_seconds, other.predicted_seconds));
  EXPECT_LE(found.predicted_seconds, 1.1 * found.bound_seconds);
  const StepPlan plan = build_plan(PlanKind::train, w, found.schedule);
  EXPECT_TRUE(prove(plan, w, found.schedule).empty());
}

TEST(BothPasses, LateUnitsAreSpreadEvenly) {
  const ModelSpec model = preset_model("gpt2-124m");
  const Workload w = workload(model, 1024, 4);
  Schedule s = frugal_schedule(w);
  EXPECT_FALSE(spread_late(w, s, 0.5)) << "all wait for the forward pass";
  s.update_ahead = false;
  for (const double share : {0.25, 0.5, 0.75}) {
    EXPECT_TRUE(spread_late(w, s, share));
    EXPECT_NEAR(late_share(w, s), share, 0.1);
    const auto half = [&](std::size_t from, std::size_t to) {
      double late = 0, all = 0;
      for (std::size_t u = from; u < to; ++u) {
        const auto numel = static_cast<double>(w.shard_numel(static_cast<UnitId>(u)));
        all += numel;
        if (s.units[u].late) late += numel;
      }
      return late / all;
    };
    EXPECT_NEAR(half(1, 13), share, 0.2);
    EXPECT_NEAR(half(13, 25), share, 0.2);
    EXPECT_FALSE(spread_late(w, s, share));
  }
  // Embedding and head are large.
  EXPECT_TRUE(s.units.front().late && s.units.back().late);
  EXPECT_TRUE(spread_late(w, s, 1));
  EXPECT_EQ(late_share(w, s), 1);
  EXPECT_FALSE(s.units.back().late) << "one is not: else the order is another one";
  EXPECT_TRUE(spread_late(w, s, 0));
  EXPECT_FALSE(s.mixes());
}

TEST(BothPasses, AFewSharesAreAskedForTheQuickest) {
  std::vector<double> asked;
  const auto seconds = [&](double share) {
    asked.push_back(share);
    return 10 + 8 * (share - 0.4) * (share - 0.4);
  };
  EXPECT_NEAR(quickest_share(seconds(0), seconds), 0.4, 0.1);
  EXPECT_LT(asked.size(), 12u);
  EXPECT_EQ(quickest_share(10, [](double) { return 9.99; }), 0) << "not notably";
  EXPECT_EQ(quickest_share(10, [](double) { return 0.0; }), 0) << "there is no room";
}

TEST(Knobs, AreTurnedNoFurtherThanIsWorthATry) {
  const ModelSpec model = preset_model("gpt2-124m");
  const Workload w = workload(model, 1024, 4);
  const auto turns = [&](const Change& knob) {
    Schedule s = frugal_schedule(w);
    int count = 0;
    while (knob(s)) ++count;
    return count;
  };
  const Schedule s = frugal_schedule(w);
  EXPECT_EQ(turns(prefetch_changed(1)), 4 - s.prefetch);
  EXPECT_EQ(turns(prefetch_changed(-1)), s.prefetch);
  EXPECT_EQ(turns(lag_changed(1)), 4 - s.lag);
  EXPECT_EQ(turns(tiles_in_flight_changed(1)), 8 - s.tiles_in_flight);
  EXPECT_EQ(turns(tiles_in_flight_changed(-1)), s.tiles_in_flight - 1);
  EXPECT_EQ(turns(activations_ahead_changed(1)), 8 - s.activations_ahead);
  Schedule larger = s;
  ASSERT_TRUE(tiles_scaled(w, 1)(larger));
  EXPECT_EQ(larger.tile_numel, 2 * s.tile_numel);
  EXPECT_TRUE(tiles_scaled(w, -1)(larger));
  EXPECT_EQ(larger, s);
  while (tiles_scaled(w, 2)(larger)) {
  }
  EXPECT_GT(4 * larger.tile_numel, tile_limit(w));
}

TEST(Knobs, AsFewMovesAsPossibleMakeRoom) {
  const ModelSpec model = preset_model("gpt2-124m");
  const Schedule all_in_host = [&] {
    Schedule s = frugal_schedule(workload(model, 1024, 4));
    for (UnitChoice& c : s.units) c.state_home = Place::host;
    return s;
  }();
  const auto count = [](const Schedule& s) {
    return std::ranges::count(s.units, Place::host, &UnitChoice::state_home);
  };
  const auto n = all_in_host.units.size();
  const auto moved = [&](std::size_t moves) {
    Schedule s = all_in_host;
    for (std::size_t u = 0; u < moves; ++u) s.units[u].state_home = Place::nvme;
    return s;
  };
  for (std::size_t room = 0; room <= n; ++room) {
    Schedule s = all_in_host;
    const auto fits = [&](const Schedule& t) { return count(t) <= static_cast<std::ptrdiff_t>(room); };
    EXPECT_TRUE(make_room(s, n, moved, fits));
    EXPECT_EQ(s, moved(n - room)) << room;
  }
  Schedule s = all_in_host;
  EXPECT_FALSE(make_room(s, n, moved, [](const Schedule&) { return false; }));
  EXPECT_FALSE(make_room(s, 0, moved, [](const Schedule&) { return false; }));
  EXPECT_EQ(s, all_in_host);
}

TEST(Search, IsDeterministic) {
  const ModelSpec model = preset_model("llama-tiny");
  Workload w = workload(model, 128, 8);
  w.budget_bytes = {std::uint64_t{8} << 20, std::uint64_t{3} << 20, std::uint64_t{1} << 30};
  const SearchResult first = search_schedule(w, {}, with_gpu()), second = search_schedule(w, {}, with_gpu());
  ASSERT_TRUE(first.fits);
  EXPECT_EQ(first.schedule, second.schedule);
  EXPECT_EQ(first.predicted_seconds, second.predicted_seconds);
}

}  // namespace
}  // namespace sluice::test
