// The stages of a pipeline, as a person asks for them: --pp, --pipeline, --chunks.
#include "cut_command.h"

namespace sluice {
namespace {

class PipelineCommand : public CutCommandTest {};

TEST_F(PipelineCommand, StagesTrainToTheBitsOfOne) {
  const std::string command = options() + "--steps 7 --hash 7 --eval-every 3 ";
  ASSERT_EQ(sluice(command + run("one")).status, 0);
  int number = 0;
  for (const std::string& stages :
       {std::string("--pp 2 "), "--pp 3 --pipeline gpipe " + drive(),
        "--pp 2 --ranks 4 --pipeline interleaved --zero 1 " + drive(), "--pp 2 --pipeline zb-h1 " + drive(),
        std::string("--pp 2 --pipeline zb-v --residency all ")}) {
    SCOPED_TRACE(stages);
    const std::string name = "stages" + std::to_string(number++);
    const Finished f = sluice(command + run(name) + stages);
    ASSERT_EQ(f.status, 0) << f.err;
    expect_same_run("one", name);
    EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
  }
}

/// ZeRO 2 and 3 reduce gradients behind every lot, so that a pipeline has as many groups as lots.
TEST_F(PipelineCommand, ReducesBehindEveryLot) {
  const std::string command =
      "train --model llama-tiny --seq 32 --warmup 3 --eval-batches 2 --lots 8 --batch 16 --steps 4 --hash 4 --data " +
      path("text") + " ";
  ASSERT_EQ(sluice(command + run("one")).status, 0);
  ASSERT_EQ(sluice(command + run("two") + "--pp 2 --dp 2 --zero 2 --reduction pass").status, 0);
  expect_same_run("one", "two");
  ASSERT_EQ(sluice(command + run("three") + "--pp 2 --zero 3 --reduction pass --pipeline interleaved").status, 0);
  expect_same_run("one", "three");
}

TEST_F(PipelineCommand, AsProcessesToo) {
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command = options() + drive() + "--steps 5 --hash 5 ";
  ASSERT_EQ(sluice(command + run("one")).status, 0);
  int number = 0;
  for (const std::string stages : {"--pp 2", "--pp 2 --pipeline zb-v", "--pp 4 --pipeline gpipe"}) {
    SCOPED_TRACE(stages);
    const std::string name = "many" + std::to_string(number++);
    ASSERT_EQ(launched(command + run(name) + stages), 0) << read(path(".err"));
    expect_same_run("one", name);
  }
}

TEST_F(PipelineCommand, ArePrintedByPlan) {
  const json plan = planned("--pp 2 --ranks 4 --pipeline zb-v");
  const json& pipeline = plan["pipeline"];
  EXPECT_EQ(pipeline["order"], "zb-v");
  EXPECT_EQ(pipeline["chunks"], 2);
  ASSERT_EQ(pipeline["stages"].size(), 2u);
  EXPECT_EQ(pipeline["stages"][0]["first_rank"], 0);
  EXPECT_EQ(pipeline["stages"][1]["first_rank"], 2);
  EXPECT_EQ(pipeline["stages"][1]["ranks"], 2);
  const std::string first = pipeline["stages"][0]["units"];
  EXPECT_TRUE(first.starts_with("embed") && first.ends_with("head")) << "a V ends where it begins: " << first;
  EXPECT_GT(pipeline["stages"][0]["message_bytes"], 0);
  EXPECT_GT(plan["bytes"]["message"], 0);
  // The last stage of 1F1B is the first to be done, and waits for the norm until the first one is.
  const auto norm_wait = [&](const std::string& more, int stage) {
    return planned("--pp 2 " + more)["pipeline"]["stages"][static_cast<std::size_t>(stage)].value("norm_wait_seconds",
                                                                                                  -1.0);
  };
  EXPECT_GE(norm_wait("", 0), 0);
  EXPECT_GE(norm_wait("", 1), norm_wait("", 0));
  EXPECT_EQ(norm_wait("--clip 0", 1), -1.0);
  EXPECT_FALSE(planned("--ranks 2").contains("pipeline"));
}

TEST_F(PipelineCommand, RefusesWhatDoesNotGoTogether) {
  const std::string train = options() + run("run");
  expect_refused(train + "--pp 0", "--pp");
  expect_refused(train + "--pp 3 --ranks 4", "--pp 3 on --ranks 4: stages have as many ranks each");
  expect_refused(train + "--pp 40", "fewer than the 40 parts");
  expect_refused(train + "--pipeline gpipe", "there is one stage; add --pp P");
  expect_refused(train + "--chunks 2", "there is one stage; add --pp P");
  expect_refused(train + "--pp 2 --pipeline 2f2b", "--pipeline");
  expect_refused(train + "--pp 2 --chunks 2", "a 1f1b pipeline has one chunk a stage");
  expect_refused(train + "--pp 2 --pipeline zb-v --chunks 3", "a zb-v pipeline has two chunks a stage");
  expect_refused(train + "--pp 2 --pipeline zb-v --group 8", "at least 4 groups of micro-batches, not 2");
  expect_refused(train + "--pp 2 --pipeline interleaved --chunks 17", "--chunks 17: give at most 16");
  expect_refused(train + "--pp 2 --ranks 6", "--batch 16 is not a multiple of --micro-batch x --ranks / --pp = 3");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(PipelineCommand, ARunGoesOnInOtherStages) {
  const std::string command = options() + drive() + "--steps 16 --hash 16 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + run("run") + "--pp 2 --pipeline zb-h1", "run", "TERM").status, 1);
  const Finished f = sluice("train --resume " + run("run") + "--pp 3 --pipeline 1f1b");
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
  // Chunks follow from the order.
  ASSERT_EQ(signalled(command + run("other"), "other", "TERM").status, 1);
  ASSERT_EQ(signalled("train --resume " + run("other") + "--pp 2 --pipeline zb-v", "other", "TERM", 6).status, 1);
  ASSERT_EQ(signalled("train --resume " + run("other") + "--pipeline interleaved", "other", "TERM", 9).status, 1);
  const Finished g = sluice("train --resume " + run("other") + "--pipeline gpipe");
  ASSERT_EQ(g.status, 0) << g.err;
  expect_same_run("whole", "other");
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
}

}  // namespace
}  // namespace sluice
