// A profile that is wrong: a run that shows it says so, marks it, and the next command knows.
#include <nlohmann/json.hpp>

#include "run_command.h"

namespace sluice {
namespace {

class DoubtCommand : public RunCommandTest {
 protected:
  std::string profile() const { return path("cache/sluice/profile.json"); }
  json known() const { return json::parse(read(profile())); }
};

TEST_F(DoubtCommand, OpsAreMeasuredOnceUnlessTheProfileSaysNot) {
  const std::string command = options() + "--device-memory 64MiB --host-memory 64MiB --steps 1 --run ";
  ASSERT_EQ(known()["measures_ops"], false);
  ASSERT_EQ(sluice(command + path("predicted")).status, 0);
  EXPECT_EQ(known()["op_seconds"], json::object());
  json measures = known();
  measures.erase("measures_ops");
  write("cache/sluice/profile.json", measures.dump());
  ASSERT_EQ(sluice(command + path("measured")).status, 0);
  const json measured = known()["op_seconds"];
  EXPECT_GT(measured.size(), 8u) << measured;
  ASSERT_EQ(sluice(command + path("again")).status, 0);
  EXPECT_EQ(known()["op_seconds"], measured);
}

// Met as 2.7 of the bound, after a profile was measured beside other programs.
TEST_F(DoubtCommand, AStepThatBeatsItsBoundSaysThatTheProfileIsWrong) {
  const std::string command = options() + "--device-memory 64MiB --host-memory 64MiB --steps 5 --run ";
  json measures = known();
  measures["measures_ops"] = true;
  write("cache/sluice/profile.json", measures.dump());
  ASSERT_EQ(sluice(command + path("first")).status, 0);
  json wrong = known();
  ASSERT_FALSE(wrong["op_seconds"].empty());
  for (const char* rate : {"gemm_flops_bf16", "gemm_flops_f32"}) wrong[rate] = 1e3;
  for (auto& [key, seconds] : wrong["op_seconds"].items()) seconds = 100;
  wrong.erase("doubts");
  write("cache/sluice/profile.json", wrong.dump());

  const Finished f = sluice(command + path("second"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("the profile is wrong: steps took "), std::string::npos) << f.err;
  std::stringstream lines(read(path("second/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const json step = json::parse(line);
    EXPECT_GT(step["efficiency"], 1);
    EXPECT_EQ(step["bound_beaten"], true);
  }
  const json doubts = known()["doubts"];
  EXPECT_TRUE(doubts.contains("gemm_flops_bf16")) << doubts;
  EXPECT_EQ(doubts["gemm_flops_bf16"]["disturbed"], false);

  // As if it had been measured again twice, which the test has no time for.
  json tried = known();
  for (auto& [name, doubt] : tried["doubts"].items()) doubt["measured_again"] = 2;
  write("cache/sluice/profile.json", tried.dump());
  const Finished next = sluice("plan --model llama-tiny --seq 32 --batch 4 --device-memory 64MiB --host-memory 64MiB");
  ASSERT_EQ(next.status, 0) << next.err;
  EXPECT_NE(next.err.find("the profile is doubtful: gemm_flops_"), std::string::npos) << next.err;
  EXPECT_NE(next.err.find("runs still differ"), std::string::npos) << next.err;
  EXPECT_EQ(known()["gemm_flops_bf16"], 1e3);
}

}  // namespace
}  // namespace sluice
