// Sequences cut over ranks, as a person asks for them: --cp.
#include "cut_command.h"

namespace sluice {
namespace {

class ContextCommand : public CutCommandTest {};

TEST_F(ContextCommand, ProcessesTrainToTheBitsOfThreads) {
  if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
  const std::string command = options() + drive() + "--steps 5 --hash 5 ";
  ASSERT_EQ(sluice(command + run("one") + "--cp 2").status, 0);
  int number = 0;
  for (const std::string more : {"--cp 2", "--cp 2 --pp 2"}) {
    SCOPED_TRACE(more);
    const std::string name = "many" + std::to_string(number++);
    ASSERT_EQ(launched(command + run(name) + more), 0) << read(path(".err"));
    expect_same_run("one", name);
  }
  const std::string in_ring = "--cp 2 --cp-attention ring";
  ASSERT_EQ(sluice(command + run("ring") + in_ring).status, 0);
  ASSERT_EQ(launched(command + run("rings") + in_ring), 0) << read(path(".err"));
  expect_same_run("ring", "rings");
  ASSERT_EQ(sluice(command + run("both") + "--cp 2 --tp 2").status, 0);
  ASSERT_EQ(launched(command + run("four") + "--cp 2 --tp 2"), 0) << read(path(".err"));
  expect_same_run("both", "four");
}

TEST_F(ContextCommand, AStoppedRunIsExportedAndGoesOn) {
  const std::string command = options() + drive() + "--steps 16 --hash 16 --cp 2 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  const Finished exported = sluice("checkpoint export " + path("run") + " " + path("exported"));
  ASSERT_EQ(exported.status, 0) << exported.err;
  const Finished e =
      sluice("eval --model " + path("exported") + " --data " + path("text") + " --seq 32 --tokenizer bytes --json");
  EXPECT_EQ(e.status, 0) << e.err;
  const Finished f = sluice("train --resume " + run("run") + "--ranks 4 --pp 2");
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
}

/// Slices share the states, or where other ranks do not, have each all of them.
TEST_F(ContextCommand, IsAPartOfAMesh) {
  const json mesh = planned("--pp 2 --dp 2 --cp 2 --tp 2")["ranks"];
  EXPECT_EQ(mesh["all"], 16);
  EXPECT_EQ(mesh["mesh"], (json{{"pp", 2}, {"dp", 2}, {"cp", 2}, {"tp", 2}}));
  EXPECT_EQ(mesh["shard_group"], 4);
  EXPECT_EQ(mesh["replicas"], 1);
  const json apart = planned("--dp 2 --cp 2 --shard-group 2")["ranks"];
  EXPECT_EQ(apart["shard_group"], 2);
  EXPECT_EQ(apart["replicas"], 2);
  const json zero = planned("--dp 2 --cp 2 --zero 0")["ranks"];
  EXPECT_EQ(zero["shard_group"], 1);
  EXPECT_EQ(zero["replicas"], 4);
}

TEST_F(ContextCommand, RanksAreNumberedInAnyOrder) {
  const std::string mesh = "--pp 2 --dp 2 --cp 2 --tp 2 --cp-attention ring ";
  const auto line = [&](const std::string& more) {
    std::string arguments = options() + mesh + more;
    arguments.replace(0, 5, "plan");
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 0) << f.err;
    const std::size_t at = f.out.find("mesh  ");
    return at == std::string::npos ? f.out : f.out.substr(at, f.out.find('\n', at) - at);
  };
  EXPECT_EQ(line(""),
            "mesh            pp 2 x dp 2 x cp 2 (ring) x tp 2: rank = ((stage x 2 + share of the batch) x 2 + slice of "
            "sequences) x 2 + part of sublayers");
  EXPECT_EQ(line("--mesh-order pp,cp,tp,dp"),
            "mesh            pp 2 x cp 2 (ring) x tp 2 x dp 2: rank = ((stage x 2 + slice of sequences) x 2 + part of "
            "sublayers) x 2 + share of the batch");
  const std::string train = options() + mesh + run("refused");
  for (const std::string order :
       {"dp,pp,cp,tp", "pp,dp,cp", "pp,dp,cp,tp,ep", "pp,dp,cp,dp", "pp dp cp tp", "pp,dp,cp,tp,"})
    expect_refused(train + "--mesh-order '" + order + "'", "each once and with commas between, and pp first");
  // A run may go on in another one.
  const std::string command = options() + drive() + "--cp 2 --tp 2 ";
  ASSERT_EQ(sluice(command + run("whole") + "--steps 16 --hash 16").status, 0);
  ASSERT_EQ(signalled(command + run("run") + "--steps 16 --hash 16 ", "run", "TERM").status, 1);
  const Finished f = sluice("train --resume " + run("run") + "--mesh-order pp,tp,dp,cp");
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
  // Also where all ranks have as many bytes at the same places.
  const std::string parts = options() + drive() + "--dp 2 --tp 2 --durable on ";
  ASSERT_EQ(sluice(parts + run("whole4") + "--steps 16 --hash 16").status, 0);
  ASSERT_EQ(signalled(parts + run("run4") + "--steps 16 --hash 16 ", "run4", "TERM").status, 1);
  const Finished other = sluice("train --resume " + run("run4") + "--mesh-order pp,tp,dp,cp");
  ASSERT_EQ(other.status, 0) << other.err;
  expect_same_run("whole4", "run4");
}

TEST_F(ContextCommand, RefusesWhatCanNotBeCut) {
  const std::string train = options() + run("run");
  expect_refused(train + "--cp 0", "--cp");
  expect_refused(train + "--cp 3 --ranks 4", "--cp 3 on 4 ranks with a whole model");
  expect_refused(train + "--cp 2 --dp 2 --ranks 8", "--pp 1 x --dp 2 x --cp 2 x --tp 1 are 4 ranks");
  expect_refused(train + "--cp 8", "llama-tiny has 4 attention heads");
  expect_refused(train + "--cp 4 --tp 2", "a rank of --tp");
  expect_refused(train + "--cp-attention ring", "--cp is 1");
  expect_refused(train + "--cp-attention rings --cp 2", "--cp-attention");
  expect_refused("train --model llama-tiny --seq 34 --batch 16 --cp 2 --cp-attention ring --data " + path("text") +
                     " " + run("run"),
                 "two equal pieces of --seq 34; give a multiple of 4");
  expect_refused(train + "--cp 2 --pp 2 --pipeline zb-h1", "--pipeline zb-h1 with --cp");
  expect_refused(train + "--cp 2 --dp 2 --shard-group 3", "groups of as many make up all ranks with the same slices");
  expect_refused("train --model llama-tiny --seq 33 --batch 16 --cp 2 --data " + path("text") + " " + run("run"),
                 "equal slices of --seq 33");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  ASSERT_EQ(sluice(options() + run("run") + "--cp 2 --steps 2").status, 0);
  expect_refused("train --cp 1 --ranks 2 " + run("run"), "--cp 1 contradicts the run, which has 2; add --resume");
  expect_refused("train --cp-attention ring " + run("run"),
                 "--cp-attention ring contradicts the run, which has ulysses; add --resume");
  expect_refused("train --resume --steps 4 --reduction pass " + run("run"), "--cp 2 ranks have slices of sequences");
}

}  // namespace
}  // namespace sluice
