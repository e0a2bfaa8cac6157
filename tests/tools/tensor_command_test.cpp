// Sublayers cut over ranks, as a person asks for them: --tp.
#include "cut_command.h"

namespace sluice {
namespace {

class TensorCommand : public CutCommandTest {};

TEST_F(TensorCommand, ProcessesTrainToTheBitsOfThreads) {
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command = options() + drive() + "--steps 5 --hash 5 ";
  ASSERT_EQ(sluice(command + run("one") + "--tp 2").status, 0);
  int number = 0;
  for (const std::string more : {"--tp 2", "--tp 2 --pp 2"}) {
    SCOPED_TRACE(more);
    const std::string name = "many" + std::to_string(number++);
    ASSERT_EQ(launched(command + run(name) + more), 0) << read(path(".err"));
    expect_same_run("one", name);
  }
}

/// A model is cut when it is read and whole when it is written.
TEST_F(TensorCommand, ReadsAndWritesWholeModels) {
  const std::string some = "--seq 32 --warmup 3 --lots 2 --batch 16 --tokenizer bytes --data " + path("text") + " ";
  ASSERT_EQ(sluice(options() + run("begun") + "--steps 2").status, 0);
  const std::string on =
      "train --model " + path("begun") + " " + some + "--steps 2 --lr 1e-30 --weight-decay 0 --dtype fp32 ";
  ASSERT_EQ(sluice(on + run("one")).status, 0);
  ASSERT_EQ(sluice(on + run("two") + "--tp 2").status, 0);
  ASSERT_EQ(sluice(on + run("four") + "--tp 4 --pp 2").status, 0);
  const std::string model = read(path("one/model.safetensors"));
  EXPECT_FALSE(model.empty());
  EXPECT_EQ(read(path("two/model.safetensors")), model) << "steps of no length change nothing";
  EXPECT_EQ(read(path("four/model.safetensors")), model);
  const Finished e =
      sluice("eval --model " + path("two") + " --data " + path("text") + " --seq 32 --tokenizer bytes --json");
  EXPECT_EQ(e.status, 0) << e.err;
}

TEST_F(TensorCommand, AStoppedRunIsExportedWholeAndGoesOn) {
  for (const std::string& where : {drive(), std::string()}) {
    SCOPED_TRACE(where);
    const std::string name = where.empty() ? "memory" : "drive",
                      command = options() + where + "--steps 16 --hash 16 --tp 2 ";
    ASSERT_EQ(sluice(command + run(name + ".whole")).status, 0);
    ASSERT_EQ(signalled(command + run(name), name, "TERM").status, 1);
    const Finished exported = sluice("checkpoint export " + path(name) + " " + path(name + ".exported"));
    ASSERT_EQ(exported.status, 0) << exported.err;
    const Finished e = sluice("eval --model " + path(name + ".exported") + " --data " + path("text") +
                              " --seq 32 --tokenizer bytes --json");
    EXPECT_EQ(e.status, 0) << e.err;
    const Finished f = sluice("train --resume " + run(name) + "--ranks 4 --pp 2");
    ASSERT_EQ(f.status, 0) << f.err;
    expect_same_run(name + ".whole", name);
  }
}

/// Ranks follow from the mesh, and are compared with it where both are said.
TEST_F(TensorCommand, IsAPartOfAMesh) {
  const json mesh = planned("--pp 2 --dp 2 --tp 2")["ranks"];
  EXPECT_EQ(mesh["all"], 8);
  EXPECT_EQ(mesh["mesh"], (json{{"pp", 2}, {"dp", 2}, {"cp", 1}, {"tp", 2}}));
  expect_refused(options() + "--run none --dp 2 --tp 2 --ranks 8",
                 "--pp 1 x --dp 2 x --cp 1 x --tp 2 are 4 ranks, and there are 8");
}

TEST_F(TensorCommand, RefusesWhatCanNotBeCut) {
  const std::string train = options() + run("run");
  expect_refused(train + "--tp 0", "--tp");
  expect_refused(train + "--tp 3 --ranks 4", "--tp 3 on --ranks 4");
  expect_refused(train + "--tp 2 --pp 2 --ranks 6", "--tp 2 with --pp 2 on --ranks 6");
  expect_refused(train + "--tp 8", "llama-tiny has 4 attention heads, fewer than ranks");
  expect_refused(train + "--tp 2 --pp 2 --pipeline zb-h1", "--pipeline zb-h1 with --tp");
  expect_refused("train --model llama-tiny --seq 33 --batch 16 --tp 2 --data " + path("text") + " " + run("run"),
                 "a micro-batch has 33 tokens");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  ASSERT_EQ(sluice(options() + run("run") + "--tp 2 --steps 2").status, 0);
  expect_refused("train --tp 1 --ranks 2 " + run("run"), "--tp 1 contradicts the run, which has 2; add --resume");
  expect_refused("train --resume --steps 4 --tp 1 " + run("run"), "--tp 1 (2 before): the run in");
}

}  // namespace
}  // namespace sluice
