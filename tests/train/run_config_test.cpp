// What a run directory keeps of options and schedule.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/train/request/run_config_json.h"

namespace sluice::test {
namespace {

TEST(RunConfigJson, KeepsWhereUpdatesAre) {
  RunConfig config;
  config.wish.update_on_device = true;
  Schedule schedule;
  schedule.units.resize(3);
  schedule.units[1].update_on_device = true;
  const auto same_config = run_config_from_json(to_json(config));
  const auto same_schedule = schedule_from_json(to_json(schedule));
  ASSERT_TRUE(same_config.ok() && same_schedule.ok());
  EXPECT_EQ(same_config->wish.update_on_device, true);
  ASSERT_EQ(same_schedule->units.size(), 3u);
  for (std::size_t u = 0; u < 3; ++u) EXPECT_EQ(same_schedule->units[u].update_on_device, u == 1);
}

TEST(RunConfigJson, KeepsHowStepsThatWaitUseMemory) {
  Schedule schedule;
  schedule.units.resize(3);
  auto plan = to_json(schedule);
  EXPECT_FALSE(plan.contains("waiting"));
  schedule.waiting = schedule.units;
  schedule.waiting[1].held = true;
  plan = to_json(schedule);
  const auto same = schedule_from_json(plan);
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ(*same, schedule);
  plan["waiting"].erase(2);
  EXPECT_FALSE(schedule_from_json(plan).ok());
}

/// Runs of before there were stages or parts go on.
TEST(RunConfigJson, OfBeforeModelsWereCutIsReadAsWhole) {
  auto config = to_json(RunConfig{});
  Schedule schedule;
  schedule.units.resize(2);
  auto plan = to_json(schedule);
  for (const char* key : {"pp", "tp", "pipeline", "chunks"}) EXPECT_EQ(config.erase(key), 1u) << key;
  for (const char* key : {"cut", "pipeline", "chunks"}) plan.erase(key);
  const auto old_config = run_config_from_json(config);
  ASSERT_TRUE(old_config.ok()) << old_config.error().message;
  EXPECT_EQ(old_config->stages, 1);
  EXPECT_EQ(old_config->tensor, 1);
  EXPECT_EQ(old_config->pipeline, PipelineChoice());
  const auto old_schedule = schedule_from_json(plan);
  ASSERT_TRUE(old_schedule.ok()) << old_schedule.error().message;
  EXPECT_TRUE(old_schedule->cut.empty());
}

/// What is written with `value` is read so, and as `before` where there is no such key yet.
template <class T>
void expect_read_as(T RunConfig::*field, const char* key, T value, T before) {
  SCOPED_TRACE(key);
  RunConfig given;
  given.*field = value;
  auto config = to_json(given);
  const auto same = run_config_from_json(config);
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ((*same).*field, value);
  EXPECT_EQ(config.erase(key), 1u);
  const auto old = run_config_from_json(config);
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_EQ((*old).*field, before);
  config[key] = 9;
  EXPECT_FALSE(run_config_from_json(config).ok());
}

TEST(RunConfigJson, OfBeforeDtypesOfGradientsAndActivationsIsReadAsItWas) {
  expect_read_as(&RunConfig::gradient_dtype, "gradient_dtype", Dtype::bf16, Dtype::f32);
  expect_read_as(&RunConfig::activation_dtype, "activation_dtype", ActivationDtype::fp8, ActivationDtype::exact);
}

/// Runs of before inputs were made again, and attention's core was apart, go on.
TEST(RunConfigJson, OfBeforeActivationsHadMoreWaysIsReadAsItWas) {
  for (const bool all : {true, false}) {
    auto config = to_json(RunConfig{});
    config["recompute"] = all;
    const auto old = run_config_from_json(config);
    ASSERT_TRUE(old.ok()) << old.error().message;
    EXPECT_EQ(old->wish.recompute, all ? Recompute::full : Recompute::none);
  }
  Schedule schedule;
  schedule.units.resize(2);
  auto plan = to_json(schedule);
  for (const char* key : {"activations_ahead", "gradients_ahead"}) EXPECT_EQ(plan.erase(key), 1u) << key;
  for (auto& unit : plan["units"])
    for (const char* key : {"core", "sweep"}) EXPECT_EQ(unit.erase(key), 1u) << key;
  const auto old = schedule_from_json(plan);
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_EQ(*old, schedule);
  for (const int wrong : {5, -1}) {
    auto config = to_json(RunConfig{});
    config["recompute"] = wrong;
    EXPECT_FALSE(run_config_from_json(config).ok()) << wrong;
  }
  plan["units"][0]["sweep"] = 300;
  EXPECT_FALSE(schedule_from_json(plan).ok());
}

TEST(RunConfigJson, OfBeforeUpdatesHadAPlaceIsReadAsOnTheCpu) {
  auto config = to_json(RunConfig{});
  Schedule schedule;
  schedule.units.resize(2);
  auto plan = to_json(schedule);
  EXPECT_EQ(config.erase("update_on_device"), 1u);
  for (auto& unit : plan["units"]) EXPECT_EQ(unit.erase("update_on_device"), 1u);
  const auto old_config = run_config_from_json(config);
  const auto old_schedule = schedule_from_json(plan);
  ASSERT_TRUE(old_config.ok()) << old_config.error().message;
  ASSERT_TRUE(old_schedule.ok()) << old_schedule.error().message;
  EXPECT_FALSE(old_config->wish.update_on_device);
  for (const UnitChoice& unit : old_schedule->units) EXPECT_FALSE(unit.update_on_device);
  // Another key that is missing is not passed over.
  plan["units"][0].erase("resident");
  EXPECT_FALSE(schedule_from_json(plan).ok());
}

}  // namespace
}  // namespace sluice::test
