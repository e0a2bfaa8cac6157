// What a run remembers of how it went on.
#include "src/train/request/run_changes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice::test {
namespace {

RunConfig with_rate(double lr) {
  RunConfig config;
  config.optimizer.lr = lr;
  return config;
}

TEST(RunChanges, EachStepHasItsOwnConfiguration) {
  std::vector<RunChange> changes;
  changes = with_change(changes, with_rate(1), with_rate(2), 10);
  changes = with_change(changes, with_rate(2), with_rate(3), 20);
  ASSERT_EQ(changes.size(), 2u);
  for (const auto& [step, lr] : {std::pair(1, 1.0), {10, 1.0}, {11, 2.0}, {20, 2.0}, {21, 3.0}, {99, 3.0}})
    EXPECT_EQ(config_of_step(changes, with_rate(3), step).optimizer.lr, lr) << step;
}

TEST(RunChanges, WhatNoStepWasRunWithIsForgotten) {
  const std::vector<RunChange> one = with_change({}, with_rate(1), with_rate(2), 10);
  EXPECT_TRUE(with_change({}, with_rate(1), with_rate(2), 0).empty()) << "no step has been run";
  EXPECT_TRUE(with_change({}, with_rate(1), with_rate(1), 10).empty()) << "nothing changed";
  EXPECT_TRUE(with_change(one, with_rate(2), with_rate(1), 10).empty()) << "and back, with no step between";
  const auto twice = with_change(one, with_rate(2), with_rate(3), 10);
  ASSERT_EQ(twice.size(), 1u);
  EXPECT_EQ(twice[0].before.optimizer.lr, 1);
  RunConfig no_bits = with_rate(2);
  no_bits.eval_every = 7;
  EXPECT_EQ(with_change(one, with_rate(2), no_bits, 20).size(), 1u) << "what changes no step is not remembered";
}

// The newest commit may be damaged, and the one before it be gone on from.
TEST(RunChanges, StepsThatAreRunAnewAreAsTheRunIsNow) {
  const auto one = with_change({}, with_rate(1), with_rate(2), 10);
  const auto back = with_change(one, with_rate(2), with_rate(2), 8);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].from, 9);
  EXPECT_EQ(with_change(one, with_rate(2), with_rate(2), 15)[0].from, 11) << "later ones stay where they are";
}

TEST(RunChanges, KeptAsJson) {
  auto changes = with_change({}, with_rate(1), with_rate(2), 10);
  RunConfig now = with_rate(2);
  now.steps = 7000;
  changes = with_change(changes, with_rate(2), now, 20);
  const auto json = to_json(changes, now);
  EXPECT_EQ(json.dump(),
            R"([{"from":11,"was":{"lr":1.0},"is":{"lr":2.0}},{"from":21,"was":{"steps":100},"is":{"steps":7000}}])");
  const auto same = changes_from_json(json, now);
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_EQ(to_json(*same, now), json);
  EXPECT_EQ(config_of_step(*same, now, 5).optimizer.lr, 1);
  EXPECT_EQ(config_of_step(*same, now, 15).steps, 100);
  for (const char* bad :
       {"{}", "[1]", R"([{"from":"x","was":{}}])", R"([{"from":3}])", R"([{"from":3,"was":{"lr":[]}}])",
        R"([{"from":3,"was":{"lr":1}},{"from":3,"was":{"lr":2}}])"})
    EXPECT_FALSE(changes_from_json(nlohmann::ordered_json::parse(bad), now).ok()) << bad;
}

TEST(RunChanges, AreToldAsOptions) {
  RunConfig now = with_rate(2e-3);
  now.optimizer.schedule = LrSchedule::linear;
  EXPECT_EQ(change_text(with_rate(1e-3), now), "--lr 0.002 (0.001 before), --lr-schedule linear (cosine before)");
  EXPECT_EQ(change_text(now, now), "");
}

}  // namespace
}  // namespace sluice::test
