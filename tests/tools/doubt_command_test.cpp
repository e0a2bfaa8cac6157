// A profile that is wrong: a run that shows it says so, marks it, and the next command knows.
#include <nlohmann/json.hpp>

#include "run_command.h"

namespace sluice {
namespace {

class DoubtCommand : public RunCommandTest {
 protected:
  std::string profile() const { return path("cache/sluice/profile.json"); }
};

// Met as 2.7 of the bound, after a profile was measured beside other programs.
TEST_F(DoubtCommand, AStepThatBeatsItsBoundSaysThatTheProfileIsWrong) {
  const std::string command = options() + "--device-memory 64MiB --host-memory 64MiB --steps 5 --run ";
  ASSERT_EQ(sluice(command + path("first")).status, 0) << "measures the ops";
  json wrong = json::parse(read(profile()));
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
  const json doubts = json::parse(read(profile()))["doubts"];
  EXPECT_TRUE(doubts.contains("gemm_flops_bf16")) << doubts;
  EXPECT_EQ(doubts["gemm_flops_bf16"]["disturbed"], false);

  // As if it had been measured again twice, which the test has no time for.
  json tried = json::parse(read(profile()));
  for (auto& [name, doubt] : tried["doubts"].items()) doubt["measured_again"] = 2;
  write("cache/sluice/profile.json", tried.dump());
  const Finished next = sluice("plan --model llama-tiny --seq 32 --batch 4 --device-memory 64MiB --host-memory 64MiB");
  ASSERT_EQ(next.status, 0) << next.err;
  EXPECT_NE(next.err.find("the profile is doubtful: gemm_flops_"), std::string::npos) << next.err;
  EXPECT_NE(next.err.find("runs still differ"), std::string::npos) << next.err;
  EXPECT_EQ(json::parse(read(profile()))["gemm_flops_bf16"], 1e3);
}

}  // namespace
}  // namespace sluice
