// sluice train as processes that mpirun starts: to the bits of one process, and back.
#include <sys/mount.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_command.h"
#include "tests/comm/mpirun.h"

namespace sluice {
namespace {

class MpiCommand : public RunCommandTest {
 protected:
  void SetUp() override {
    if (!test::has_mpi) GTEST_SKIP() << "no MPI, or one that this build can not watch";
    RunCommandTest::SetUp();
  }
  static std::string mpirun(int processes) {
    return test::mpi_environment + ("mpirun -n " + std::to_string(processes)) + " ";
  }
  Finished launched(int processes, const std::string& arguments) const {
    return shell(mpirun(processes) + SLUICE_BINARY " " + arguments);
  }
  Finished shell(const std::string& command) const {
    const std::string script = "cd " + path("") + " && export XDG_CACHE_HOME=" + path("cache") + "; " + command + " >" +
                               path(".out") + " 2>" + path(".err") + " </dev/null";
    const int status = std::system(script.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
  }
  /// Of the lines of standard error those that sluice has written: mpirun has words of its own.
  static std::vector<std::string> own_lines(const Finished& f) {
    std::vector<std::string> lines;
    std::stringstream text(f.err);
    for (std::string line; std::getline(text, line);)
      if (line.starts_with("sluice ")) lines.push_back(line);
    return lines;
  }
  void expect_refusal(const Finished& f, const std::string& what) const {
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_EQ(f.out, "");
    const std::vector<std::string> lines = own_lines(f);
    ASSERT_EQ(lines.size(), 1u) << f.err;
    EXPECT_NE(lines.front().find(what), std::string::npos) << lines.front();
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    EXPECT_EQ(lines(a), lines(b));
    EXPECT_EQ(result(a), result(b));
    EXPECT_EQ(read(path(a) + "/model.safetensors"), read(path(b) + "/model.safetensors"));
  }
  json last_line(const std::string& name) const {
    std::stringstream text(read(path(name) + "/metrics.jsonl"));
    std::string line, last;
    while (std::getline(text, line)) last = line;
    return json::parse(last);
  }
  /// For `signalled`: one of mpirun's processes instead of itself, by rank from 1.
  static std::string process(const std::string& signal, int number) {
    return signal + " $(pgrep -P $pid | sed -n " + std::to_string(number) + "p); true";
  }
};

TEST_F(MpiCommand, ProcessesHaveTheBitsOfOneProcess) {
  int number = 0;
  // The first has a plan that is given whole. The others' are found, by what was measured on the way: what moves in the
  // two runs may differ there, and the bits may not.
  const std::string given =
      "--group 2 --update ahead --recompute full --activations nvme --residency none --zero 3 "
      "--optimizer cpu --prefetch 1 --lots 2 ";
  for (const std::string& where : {drive() + given, drive(), drive() + "--durable off --update backward --clip 0 ",
                                   std::string("--states host --residency all ")}) {
    SCOPED_TRACE(where);
    const std::string command = options() + where + "--steps 9 --hash 3 --eval-every 4 ";
    const std::string one = "one" + std::to_string(number), many = "many" + std::to_string(number++);
    ASSERT_EQ(sluice(command + run(one) + "--ranks 2").status, 0);
    const Finished f = launched(2, command + run(many));
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(own_lines(f).size(), 0u) << f.err;
    expect_same_run(one, many);
    EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
  }
  // What all ranks moved and held, from rank 0's metrics.
  for (const char* key : {"nvme_read_bytes", "nvme_write_bytes", "collective_bytes", "nvme_peak_bytes"})
    EXPECT_EQ(last_line("one0")[key], last_line("many0")[key]) << key;
}

TEST_F(MpiCommand, WhatRanksShareChangesNoBit) {
  const std::string command = options() + "--device-memory 8MiB --host-memory 8MiB --states nvme --nvme " +
                              path("nvme") + " --lots 4 --steps 5 --hash 5 ";
  ASSERT_EQ(sluice(command + run("one")).status, 0);
  int number = 0;
  for (const std::string share :
       {"--zero 0", "--zero 1", "--zero 3", "--shard-group 2", "--shard-group 2 --residency all", "--second-copy 2",
        "--reduction pass --group 1 --residency step"}) {
    SCOPED_TRACE(share);
    const bool two = share.find("pass") != std::string::npos;
    const std::string name = "many" + std::to_string(number++);
    const Finished f = launched(two ? 2 : 4, command + run(name) + share);
    ASSERT_EQ(f.status, 0) << f.err;
    expect_same_run("one", name);
  }
}

TEST_F(MpiCommand, LengthsFollowEachOtherAsInOneProcess) {
  const std::string command = "train --model llama-tiny --batch 4 --lots 2 --warmup 3 --eval-batches 1 --data " +
                              path("text") + " --seq-schedule 16:3,32:* --steps 6 ";
  const Finished apart = launched(2, command + drive() + run("apart"));
  ASSERT_EQ(apart.status, 0) << apart.err;
  const Finished together = sluice(command + "--ranks 2 " + drive() + run("together"));
  ASSERT_EQ(together.status, 0) << together.err;
  expect_same_run("apart", "together");
  EXPECT_EQ(lines("apart").size(), 6u);
}

TEST_F(MpiCommand, OtherSums) {
  const std::string command = options() + "--device-memory 8MiB --host-memory 8MiB --states nvme --nvme " +
                              path("nvme") + " --lots 4 --steps 5 --hash 5 ";
  ASSERT_EQ(sluice(command + run("one") + "--ranks 4 --reduce bf16").status, 0);
  const Finished rounded = launched(4, command + run("many") + "--reduce bf16");
  ASSERT_EQ(rounded.status, 0) << rounded.err;
  expect_same_run("one", "many");
  const Finished tree = launched(4, command + run("tree"));
  ASSERT_EQ(tree.status, 0) << tree.err;
  // Of what goes for a parameter with ZeRO-3 (4 bytes of gradient, 2 of parameter twice), a quarter less.
  const auto received = [&](const std::string& name) { return last_line(name)["collective_bytes"].get<double>(); };
  EXPECT_GT(received("many"), 0.6 * received("tree"));
  EXPECT_LT(received("many"), 0.8 * received("tree"));
  ASSERT_EQ(sluice(command + run("bits") + "--ranks 4 --zero-plus-plus --second-copy 2").status, 0);
  const Finished bits = launched(4, command + run("manybits") + "--zero-plus-plus --second-copy 2");
  ASSERT_EQ(bits.status, 0) << bits.err;
  expect_same_run("bits", "manybits");
  const auto loss = [&](const std::string& name) { return result(name)["eval_loss"].get<double>(); };
  // Replicas add up in place, shards do not.
  for (const std::string share : {"--zero 0", "--zero 3", "--shard-group 2"}) {
    SCOPED_TRACE(share);
    const std::string name = "native" + share.substr(share.size() - 1);
    const Finished native = launched(4, command + run(name) + "--reduce native " + share);
    ASSERT_EQ(native.status, 0) << native.err;
    EXPECT_NEAR(loss(name), loss("tree"), 0.01 * loss("tree"));
  }
}

TEST_F(MpiCommand, StepsThatAreNotFiniteAreSkippedByAll) {
  const std::string command = options() + drive() + "--steps 8 --poison-steps 3,4 ";
  ASSERT_EQ(sluice(command + run("one") + "--ranks 2").status, 0);
  const Finished f = launched(2, command + run("many"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("nothing of this step is kept"), std::string::npos) << f.err;
  expect_same_run("one", "many");
  // Where they are one after another as often as may be, all end.
  const Finished ended = launched(2, options() + drive() + run("ended") + "--steps 8 --poison-steps 3,4,5,6");
  EXPECT_EQ(ended.status, 1) << ended.err;
  ASSERT_EQ(own_lines(ended).size(), 1u) << ended.err;
  EXPECT_NE(own_lines(ended).front().find("were not finite one after another"), std::string::npos) << ended.err;
}

TEST_F(MpiCommand, WhatOneProcessFailsAtAllOfThemEndWith) {
  // The trace is the leader's alone, and written when all is done.
  const std::string small = path("small");
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=16k") != 0) GTEST_SKIP() << "no file system can be mounted here";
  const Finished f = launched(2, options() + "--steps 3 --json --run none --trace " + small + "/trace.json");
  EXPECT_EQ(umount(small.c_str()), 0);
  EXPECT_EQ(f.status, 1) << f.err;
  ASSERT_EQ(own_lines(f).size(), 1u) << f.err;
  EXPECT_NE(own_lines(f).front().find("trace.json"), std::string::npos) << f.err;
}

TEST_F(MpiCommand, WhatEachHasReadIsCompared) {
  // What a process sees as the model's weights or as data may be another file on another machine.
  ASSERT_EQ(sluice(options() + "--steps 1 " + run("a")).status, 0);
  ASSERT_EQ(sluice(options() + "--steps 1 --seed 2 " + run("b")).status, 0);
  const std::string link = "[ $OMPI_COMM_WORLD_RANK = 1 ] && mount --bind " + path("b") + " " + path("a") + "; exec ";
  const Finished f = shell(mpirun(2) + "unshare --mount sh -c '" + link + SLUICE_BINARY " eval --model a'");
  if (f.err.find("unshare") != std::string::npos) GTEST_SKIP() << "no file system can be mounted here";
  expect_refusal(f, "rank 1 has other weights in a than rank 0: all ranks need the same");
}

TEST_F(MpiCommand, EvalGivesTheSameNumbers) {
  ASSERT_EQ(sluice(options() + "--steps 3 " + run("run")).status, 0);
  const Finished one = sluice("eval --model run --json"), three = launched(3, "eval --model run --json");
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(three.status, 0) << three.err;
  EXPECT_EQ(one.out, three.out);
  EXPECT_EQ(json::parse(three.out)["eval"], result("run")["eval"]);
  expect_refusal(launched(2, "eval --model run --data nowhere"), "nowhere");
}

TEST_F(MpiCommand, ARunGoesOnAsProcessesOrAsOne) {
  const std::string command = options() + drive() + "--lots 4 --steps 120 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  // One of its processes is asked to stop: all of them do.
  Finished f = signalled(command + run("run"), "run", process("TERM", 3), 3, mpirun(4));
  EXPECT_EQ(own_lines(f).size(), 1u) << f.err;
  EXPECT_NE(f.err.find("; to go on: mpirun -n 4 sluice train --run"), std::string::npos) << f.err;
  f = signalled("train --resume --ranks 1 " + run("run"), "run", "TERM", static_cast<int>(lines("run").size()) + 3);
  EXPECT_EQ(f.status, 1) << f.err;
  f = launched(2, "train --resume " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme"))) << "also of ranks that there are no more";
}

TEST_F(MpiCommand, WhatIsNotDurableIsSavedByAllAndGoesOn) {
  const std::string command = options() + "--states host --lots 2 --steps 120 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  signalled(command + run("run"), "run", process("TERM", 2), 3, mpirun(2));
  EXPECT_TRUE(std::filesystem::exists(path("run/saved/LATEST")));
  const Finished f = launched(2, "train --resume " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
}

TEST_F(MpiCommand, AfterAKilledProcessTheSameCommandGoesOn) {
  const std::string command = options() + drive() + "--lots 2 --steps 60 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  for (const int number : {1, 2}) {
    const int done = number == 1 ? 0 : static_cast<int>(lines("run").size());
    const Finished f = signalled(command + run("run"), "run", process("KILL", number), done + 3, mpirun(2));
    EXPECT_NE(f.err.find("signal 9"), std::string::npos) << f.err;
  }
  // Where mpirun lets the others live they say who is lost and where they waited; so they do of one that is stopped.
  Finished f = signalled(command + run("run"), "run", process("KILL", 2), static_cast<int>(lines("run").size()) + 3,
                         mpirun(2) + "--enable-recovery ");
  ASSERT_EQ(own_lines(f).size(), 1u) << f.err;
  EXPECT_NE(own_lines(f).front().find("waiting for rank 1"), std::string::npos) << f.err;
  EXPECT_NE(own_lines(f).front().find("rank 1 is lost: its process has ended; what was committed is kept"),
            std::string::npos)
      << f.err;
  f = signalled(command + run("run"), "run", process("STOP", 2), static_cast<int>(lines("run").size()) + 3, mpirun(2));
  EXPECT_EQ(f.status, 1) << f.err;
  EXPECT_NE(f.err.find("rank 1 is lost: it has given no sign of life for 15 s"), std::string::npos) << f.err;
  f = launched(2, command + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
}

/// Of two, at some of the calls with which they make a checkpoint; the first also publishes it.
TEST_F(MpiCommand, AProcessThatDiesInASaveLeavesTheLastOneWhole) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers want to be loaded first";
#endif
  const std::string command =
      options() + "--device-memory 32MiB --host-memory 64MiB --lots 2 --steps 6 --save-every 2 --keep 1 ";
  ASSERT_EQ(launched(2, command + run("whole")).status, 0);
  for (const auto& [process, call] :
       {std::pair(0, 2), std::pair(0, 9), std::pair(0, 14), std::pair(1, 1), std::pair(1, 7)}) {
    SCOPED_TRACE("process " + std::to_string(process) + " at call " + std::to_string(call));
    std::filesystem::remove_all(path("run"));
    const std::string dies =
        "env LD_PRELOAD=" SLUICE_SYSTEM_CALLS " 'SLUICE_TEST_FAILING_CALL=" + std::to_string(call) +
        " kill /checkpoints make allocate fsync rename unlink' ";
    const std::string program = SLUICE_BINARY " " + command + run("run");
    const Finished f =
        shell(mpirun(1) + (process == 0 ? dies : "") + program + ": -n 1 " + (process == 1 ? dies : "") + program);
    EXPECT_NE(f.status, 0) << f.err;
    if (std::filesystem::exists(path("run/checkpoints/LATEST"))) {
      const Finished whole = sluice("checkpoint verify " + path("run/checkpoints"));
      EXPECT_EQ(whole.status, 0) << whole.err;
    }
    const Finished last = launched(2, command + run("run"));
    ASSERT_EQ(last.status, 0) << last.err;
    EXPECT_EQ(read(path("run/model.safetensors")), read(path("whole/model.safetensors")));
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(path("run/checkpoints")))
      left.push_back(entry.path().filename());
    std::ranges::sort(left);
    EXPECT_EQ(left, (std::vector<std::string>{"LATEST", "step-6"}));
    EXPECT_EQ(sluice("checkpoint verify " + path("run/checkpoints")).status, 0);
  }
}

TEST_F(MpiCommand, RefusalsAreOneLineAndTouchNothing) {
  const auto before = everything();
  expect_refusal(launched(2, options() + run("run") + "--ranks 3"), "2 processes were started");
  expect_refusal(launched(3, options() + run("run")), "is not a multiple of --micro-batch x --ranks = 3");
  expect_refusal(launched(2, options() + run("run") + "--device-memory 4KiB"), "does not fit");
  expect_refusal(launched(2, "train --model llama-tiny --data nowhere " + run("run")), "nowhere");
  const std::string one = SLUICE_BINARY " " + options() + run("run");
  expect_refusal(shell(mpirun(1) + one + " : -n 1 " + one + " --seed 2"), "rank 1 was started with other options");
  for (const char* other : {"generate --model llama-tiny", "plan --model llama-tiny", "bench copy"})
    expect_refusal(launched(2, other), "is one process, and 2 were started");
  EXPECT_TRUE(before == everything()) << "something was touched";
}

}  // namespace
}  // namespace sluice
