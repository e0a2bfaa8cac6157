// What ranks share, as a person asks for it: --zero, --shard-group, --reduction.
#include "run_command.h"

namespace sluice {
namespace {

class ZeroCommand : public RunCommandTest {
 protected:
  std::string options(int batch = 16) const {
    return "train --model llama-tiny --seq 32 --warmup 3 --eval-batches 1 --data " + path("text") + " --batch " +
           std::to_string(batch) + " ";
  }
  std::string four() const { return "--ranks 4 --lots 4 " + drive(); }
  json planned(const std::string& more) const {
    std::string arguments = options() + four() + more + " --json";
    arguments.replace(0, 5, "plan");
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out);
  }
};

TEST_F(ZeroCommand, StagesMoveTheirBytes) {
  // Of each parameter that a step passes twice: 8, 6, 6 and 8 bytes x 3/4. Embedding and head are passed once.
  const auto bytes = [&](const std::string& more) { return planned(more)["bytes"]["collective"].get<double>(); };
  const double all_reduced = bytes("--zero 0"), one = bytes("--zero 1"), two = bytes("--zero 2"),
               three = bytes("--zero 3");
  EXPECT_EQ(one, two);
  EXPECT_EQ(bytes("--residency step"), one);
  EXPECT_GT(three, one);
  EXPECT_NEAR(all_reduced / one, 8.0 / 6, 0.15) << "to the padding of shards";
  const json groups = planned("--shard-group 2");
  EXPECT_EQ(groups["ranks"]["replicas"], 2);
  EXPECT_EQ(groups["ranks"]["shard_group"], 2);
  const json second = planned("--second-copy 2 --zero 3");
  EXPECT_LT(second["bytes"]["collective"].get<double>(), three) << "later passes ask one rank and not three";
  EXPECT_GT(second["bytes"]["h2d"].get<double>(), planned("--zero 3")["bytes"]["h2d"].get<double>());
  EXPECT_EQ(groups["bytes"]["collective"].get<double>(), 4 * groups["ranks"]["received_bytes_per_rank"].get<double>());
}

TEST_F(ZeroCommand, RefusesWhatContradictsAStage) {
  const std::string train = options() + four() + run("run");
  expect_refused(train + "--zero 4", "--zero");
  expect_refused(train + "--zero 0 --shard-group 2",
                 "--zero 0 means that every rank has all states, and --shard-group 2");
  expect_refused(train + "--zero 1 --shard-group 1", "--zero 1 means that ranks share the states, and --shard-group 1");
  expect_refused(train + "--zero 1 --residency none", "--residency none was given; leave one of them out");
  expect_refused(train + "--zero 1 --reduction pass", "--reduction pass was given");
  expect_refused(train + "--zero 2 --group 1", "--group 1 was given");
  expect_refused(train + "--zero 3 --schedule horizontal", "--schedule horizontal was given");
  expect_refused(train + "--zero 3 --residency step", "--residency step was given");
  expect_refused(train + "--second-copy 3", "give what divides 4 and is less");
  expect_refused(train + "--second-copy 4", "give what divides 4 and is less");
  expect_refused(train + "--second-copy 2 --shard-group 2", "give what divides 2 and is less");
  expect_refused(train + "--second-copy 2 --zero 1", "gathered for every pass");
  expect_refused(options() + run("none") + "--second-copy 2", "is of ranks that share the states, and there is one");
  expect_refused(train + "--shard-group 3", "give what divides --ranks 4");
  expect_refused(train + "--shard-group 8", "give what divides --ranks 4");
  expect_refused(options(12) + "--ranks 3 --lots 6 --reduction pass", "--reduction pass on 3 ranks");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(ZeroCommand, OtherSumsAreRecordedAndGiveOtherBits) {
  const auto loss = [&](const std::string& name) { return result(name)["eval_loss"].get<double>(); };
  const std::string command = options() + four() + "--steps 12 --hash 12 ";
  ASSERT_EQ(sluice(command + run("tree")).status, 0);
  ASSERT_EQ(sluice(command + run("bf16") + "--reduce bf16").status, 0);
  ASSERT_EQ(sluice(command + run("again") + "--reduce bf16 --zero 2").status, 0);
  EXPECT_NE(lines("bf16"), lines("tree"));
  EXPECT_NEAR(loss("bf16"), loss("tree"), 0.02 * loss("tree"));
  EXPECT_EQ(lines("again"), lines("bf16"));
  EXPECT_EQ(json::parse(read(path("bf16/run.json")))["config"]["reduce"], 1);
  // A run keeps its sums until it is told otherwise, which is recorded.
  const std::string longer = options() + four() + "--steps 40 ";
  ASSERT_EQ(signalled(longer + run("run") + "--reduce bf16", "run", "TERM").status, 1);
  ASSERT_EQ(sluice("train --resume --reduce tree " + run("run")).status, 0);
  EXPECT_EQ(json::parse(read(path("run/run.json")))["changes"].size(), 1u);
}

TEST_F(ZeroCommand, WhatTravelsInFewBitsIsRecorded) {
  const std::string command = options() + four() + "--steps 12 --hash 12 ";
  ASSERT_EQ(sluice(command + run("exact")).status, 0);
  ASSERT_EQ(sluice(command + run("few") + "--zero-plus-plus").status, 0);
  ASSERT_EQ(sluice(command + run("again") + "--gather int8 --reduce int4 --schedule horizontal").status, 0);
  EXPECT_NE(lines("few"), lines("exact"));
  EXPECT_EQ(lines("again"), lines("few"));
  EXPECT_NEAR(result("few")["eval_loss"].get<double>(), result("exact")["eval_loss"].get<double>(),
              0.01 * result("exact")["eval_loss"].get<double>());
  const json ranks = planned("--zero-plus-plus")["ranks"];
  EXPECT_EQ(ranks["gather"], "int8");
  EXPECT_EQ(ranks["reduce"], "int4");
  EXPECT_LT(ranks["received_bytes_per_rank"],
            0.4 * planned("--zero 3")["ranks"]["received_bytes_per_rank"].get<double>());
  // A run keeps it until it is told otherwise.
  const std::string longer = options() + four() + "--steps 40 ";
  ASSERT_EQ(signalled(longer + run("run") + "--zero-plus-plus", "run", "TERM").status, 1);
  ASSERT_EQ(sluice("train --resume --gather exact --reduce tree " + run("run")).status, 0);
  EXPECT_EQ(json::parse(read(path("run/run.json")))["changes"].size(), 1u);
  expect_refused(options() + run("none") + "--zero-plus-plus", "--gather int8 is of what ranks share");
  for (const std::string other : {"--reduce tree", "--reduce bf16", "--gather exact"})
    expect_refused(options() + run("none") + four() + "--zero-plus-plus " + other, other + " was given; leave one");
  expect_refused(options() + run("none") + four() + "--zero 0 --reduce int4", "--reduce int4 is of what ranks share");
  expect_refused(options() + run("none") + four() + "--zero 2 --gather int8", "give --zero 3");
}

TEST_F(ZeroCommand, AStageGoesOnWithOtherRanks) {
  const std::string command = options() + "--lots 8 " + drive() + "--steps 40 ";
  ASSERT_EQ(sluice(command + run("whole") + "--ranks 2 --zero 2").status, 0);
  const auto stopped = [&](const std::string& line, std::size_t after) {
    return signalled(line, "run", "TERM", static_cast<int>(after) + 3).status;
  };
  ASSERT_EQ(stopped(command + run("run") + "--ranks 2 --zero 2", 0), 1);
  ASSERT_EQ(stopped(command + run("run") + "--ranks 4 --zero 2 --resume", lines("run").size()), 1);
  // Stages of a group stay of that group, and sums where they were.
  ASSERT_EQ(stopped("train --resume --shard-group 2 --reduction pass --zero 3 " + run("run"), lines("run").size()), 1);
  ASSERT_EQ(stopped("train --resume --zero 3 " + run("run"), lines("run").size()), 1);
  const json kept = json::parse(read(path("run/run.json")))["config"];
  EXPECT_EQ(kept["shard_group"], 2);
  EXPECT_EQ(kept["reduction"], 1);
  const Finished on = sluice("train --resume --ranks 1 --second-copy 2 " + run("run"));
  EXPECT_EQ(on.status, 2) << on.err;
  EXPECT_EQ(sluice("train --resume --ranks 1 " + run("run")).status, 0);
  EXPECT_EQ(lines("run"), lines("whole"));
  EXPECT_EQ(result("run"), result("whole"));
}

TEST_F(ZeroCommand, ARunGoesOnAsItBeganOrAsItIsTold) {
  const std::string command = options() + four() + "--steps 40 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + run("run") + "--zero 0", "run", "TERM").status, 1);
  expect_refused_untouched(command + run("run") + "--zero 1", "--shard-group");
  expect_refused_untouched(command + run("run") + "--zero 0 --residency all", "--residency all contradicts the run");
  // The same line goes on; with --resume other groups may.
  const auto done = lines("run").size();
  ASSERT_EQ(signalled(command + run("run") + "--zero 0", "run", "TERM", static_cast<int>(done) + 3).status, 1);
  const Finished on = sluice("train --resume --shard-group 2 " + run("run"));
  ASSERT_EQ(on.status, 0) << on.err;
  EXPECT_NE(on.err.find("with --shard-group 2 (1 before)"), std::string::npos) << on.err;
  EXPECT_EQ(lines("run"), lines("whole"));
  EXPECT_EQ(result("run"), result("whole"));
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
}

}  // namespace
}  // namespace sluice
