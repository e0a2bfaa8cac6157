#include "offload/plan/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/plan/finish.h"
#include "tests/plan/random_plan.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

TEST(Timeline, TraceHoldsEveryOpOnItsLane) {
  StepPlan plan = random_plan(4, {20, 2, true, true});
  plan.units[0] = "quo\"ted\\unit";
  finish(plan);
  HardwareProfile hw;
  const Simulation s = simulate(plan, hw);
  const ScratchDir folder;
  const std::string path = folder / "trace.json";
  ASSERT_TRUE(write_trace(path, plan, {{"predicted", s.timeline}, {"measured", s.timeline}}).ok());
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::map<std::string, int> names;
  std::map<int, std::string> processes;
  int counters = 0;
  for (const auto& e : trace.at("traceEvents")) {
    const std::string ph = e.at("ph");
    if (ph == "M" && e.at("name") == "process_name") processes[e.at("pid")] = e.at("args").at("name");
    counters += ph == "C";
    if (ph != "X") continue;
    ++names[e.at("name")];
    const OpId op = e.at("args").at("op");
    EXPECT_EQ(e.at("tid"), plan.ops[op].lane);
    EXPECT_EQ(e.at("name"), describe(plan, op));
    EXPECT_NEAR(e.at("ts").get<double>(), s.timeline[op].start * 1e6, 1e-2);
  }
  EXPECT_EQ(names.size(), plan.ops.size());
  for (const auto& [name, count] : names) EXPECT_EQ(count, 2) << name;
  ASSERT_EQ(processes.size(), 4u);
  EXPECT_EQ(processes.begin()->second, "predicted rank 0");
  EXPECT_GT(counters, 10);
  std::filesystem::remove(path);
}

/// In a plan that runs one op at a time, the live bytes reach exactly the packer's lower bound.
TEST(Timeline, CountersReachMaxLive) {
  StepPlan plan = transformer_plan(4, 2, true);
  plan.cyclic = false;
  finish(plan);
  Timeline spans;
  for (OpId i = 0; i < plan.ops.size(); ++i) spans.push_back({i, 0, i * 1e-3, (i + 1) * 1e-3});
  const ScratchDir folder;
  const std::string path = folder / "live.json";
  ASSERT_TRUE(write_trace(path, plan, {{"one by one", spans}}).ok());
  std::ifstream file(path);
  std::map<std::string, std::uint64_t> highest;
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == "C") {
      std::uint64_t& most = highest[e.at("name")];
      most = std::max(most, e.at("args").at("live").get<std::uint64_t>());
    }
  EXPECT_EQ(highest.at("device bytes"), plan.arena(Tier::device, 0)->max_live_bytes);
  EXPECT_EQ(highest.at("host bytes"), plan.arena(Tier::host, 0)->max_live_bytes);
  std::filesystem::remove(path);
}

TEST(Timeline, AnUnwritablePathIsAnError) {
  const StepPlan plan = random_plan(4, {5, 1, true, true});
  const Status status = write_trace("/nonexistent-directory/trace.json", plan, {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("/nonexistent-directory"), std::string::npos);
}

}  // namespace
}  // namespace sluice
