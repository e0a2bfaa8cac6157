#include "offload/plan/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "offload/plan/finish.h"
#include "tests/plan/random_plan.h"
#include "tests/plan/trace_rule.h"
#include "tests/scratch_dir.h"

namespace sluice {
namespace {

/// By process and thread.
std::map<std::pair<int, int>, std::string> names_of_tracks(const nlohmann::json& trace) {
  std::map<std::pair<int, int>, std::string> names;
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("ph") == "M" && e.at("name") == "thread_name") {
      const bool fresh = names.emplace(std::pair<int, int>(e.at("pid"), e.at("tid")), e.at("args").at("name")).second;
      EXPECT_TRUE(fresh) << e;
    }
  return names;
}

TEST(Timeline, TraceHoldsEveryOpOnItsLane) {
  StepPlan plan = random_plan(4, {40, grid({2}).at(1), true, true});
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
  const auto threads = names_of_tracks(trace);
  int counters = 0;
  for (const auto& e : trace.at("traceEvents")) {
    const std::string ph = e.at("ph");
    if (ph == "M" && e.at("name") == "process_name") processes[e.at("pid")] = e.at("args").at("name");
    counters += ph == "C";
    if (ph != "X") continue;
    ++names[e.at("name")];
    const OpId op = e.at("args").at("op");
    const std::string lane = lane_names[static_cast<std::size_t>(plan.lanes[plan.ops[op].lane].kind)];
    EXPECT_EQ(threads.at({e.at("pid"), e.at("tid")}).substr(0, lane.size()), lane);
    EXPECT_EQ(e.at("name"), describe(plan, op));
    EXPECT_NEAR(e.at("ts").get<double>(), s.timeline[op].start * 1e6, 1e-2);
  }
  EXPECT_EQ(names.size(), plan.ops.size());
  for (const auto& [name, count] : names) EXPECT_EQ(count, 2) << name;
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes.begin()->second, "predicted");
  EXPECT_EQ(processes.rbegin()->second, "measured");
  EXPECT_GT(counters, 10);
  std::filesystem::remove(path);
}

/// Reads of a window, their numbers as rounding likes them least: thirds of nanoseconds, borders that are equal.
TEST(Timeline, OpsThatOverlapHaveTracksOfTheirOwn) {
  StepPlan plan;
  plan.units = {"a"};
  plan.lanes = {{LaneKind::compute}, {LaneKind::nvme_read, true}};
  Timeline spans;
  for (OpId i = 0; i < 600; ++i) {
    Op op;
    op.kind = i % 3 == 0 ? OpKind::forward : OpKind::read;
    op.lane = i % 3 == 0 ? 0 : 1;
    op.unit = 0;
    plan.ops.push_back(op);
    const double start = 1234 + i / 3 * 1e-6 / 3, took = i % 3 == 0 ? 1e-6 / 3 : (i % 7) * 1e-6 / 3;
    spans.push_back({i, 0, start, start + took});
  }
  const ScratchDir folder;
  ASSERT_TRUE(write_trace(folder / "trace.json", plan, {{"predicted", spans}, {"measured", spans}}).ok());
  std::ifstream file(folder / "trace.json");
  const nlohmann::json trace = nlohmann::json::parse(file);
  for (const test::Digits digits : {test::Digits::taken, test::Digits::cut_off})
    EXPECT_EQ(test::dropped_slices(trace, digits), std::vector<std::string>());
  std::set<std::string> names;
  std::map<int, int> order;
  for (const auto& [track, name] : names_of_tracks(trace)) names.insert(name);
  EXPECT_EQ(names.count("compute 2"), 0u) << "ops that follow each other without a gap share a track";
  for (const char* name : {"compute", "nvme_read", "nvme_read 2", "nvme_read 3"}) EXPECT_EQ(names.count(name), 1u);
  for (const auto& e : trace.at("traceEvents"))
    if (e.at("name") == "thread_sort_index") order[e.at("tid")] = e.at("args").at("sort_index");
  EXPECT_EQ(order.size(), names_of_tracks(trace).size());
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [](auto& a, auto& b) { return a.second < b.second; }));
  std::size_t slices = 0;
  for (const auto& e : trace.at("traceEvents")) slices += e.at("ph") == "X";
  EXPECT_EQ(slices, 2 * spans.size());
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
  EXPECT_EQ(highest.at("device bytes"), plan.arena(Tier::device)->max_live_bytes);
  EXPECT_EQ(highest.at("host bytes"), plan.arena(Tier::host)->max_live_bytes);
  std::filesystem::remove(path);
}

TEST(Timeline, AnUnwritablePathIsAnError) {
  const StepPlan plan = random_plan(4, {5, {}, true, true});
  const Status status = write_trace("/nonexistent-directory/trace.json", plan, {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("/nonexistent-directory"), std::string::npos);
}

}  // namespace
}  // namespace sluice
