// Sequences that go through the model slice by slice, as a person asks for them: --slices.
#include "cut_command.h"

namespace sluice {
namespace {

class SlicesCommand : public CutCommandTest {
 protected:
  std::string sliced(int slices) const {
    return "train --model llama-tiny --seq 64 --eval-batches 2 --batch 4 --data " + path("text") + " --slices " +
           std::to_string(slices) + " ";
  }
};

/// Whatever room there is; and what it takes is less than whole sequences do.
TEST_F(SlicesCommand, BudgetsChangeNoBit) {
  const std::string command = sliced(8) + "--steps 3 --hash 3 --durable off ";
  ASSERT_EQ(sluice(command + run("roomy")).status, 0);
  const std::string in_drive = "--states nvme --nvme " + path("nvme") + " ";
  std::string corner = command;
  corner.replace(0, 5, "plan");
  const auto least = [&](std::string arguments) {
    const Finished f = sluice(arguments + " --json");
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out)["smallest"];
  };
  const json budgets = least(corner + in_drive);
  const std::string tight = command + in_drive + "--device-memory " + budgets["device"].dump() + " --host-memory " +
                            budgets["host"].dump() + " --nvme-space " + budgets["nvme"].dump() + " ";
  const Finished f = sluice(tight + run("tight"));
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("roomy", "tight");
  const Finished e = sluice("eval --model " + path("roomy") + " --json");
  ASSERT_EQ(e.status, 0) << e.err;
  EXPECT_EQ(json::parse(e.out)["loss"], result("roomy")["eval_loss"]);
}

TEST_F(SlicesCommand, AStoppedRunGoesOn) {
  const std::string command = sliced(4) + drive() + "--lots 2 --steps 16 --hash 16 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  const Finished f = sluice("train --resume " + run("run") + "--ranks 2");
  ASSERT_EQ(f.status, 0) << f.err;
  expect_same_run("whole", "run");
}

TEST_F(SlicesCommand, ArePlanned) {
  const json plan = planned("--slices 4 --group 2");
  EXPECT_EQ(plan["schedule"]["slices"], 4);
  EXPECT_EQ(plan["schedule"]["micro_batches"], 16);
  EXPECT_EQ(plan["schedule"]["group"], 2);
  EXPECT_NE(sluice("plan --model llama-tiny --seq 64 --slices 4").out.find("keys and values"), std::string::npos);
}

TEST_F(SlicesCommand, RefusesWhatCanNotBeSliced) {
  const std::string train = options() + run("run");
  expect_refused(train + "--slices 0", "--slices");
  expect_refused(train + "--slices 5", "--slices 5: slices are of equal length, and --seq is 32; give what divides it");
  expect_refused(train + "--slices 2 --cp 2", "--slices 2 with --cp 2");
  expect_refused(train + "--slices 2 --tp 2", "--slices 2 with --tp 2");
  expect_refused(train + "--slices 2 --pp 2", "--slices 2 with --pp 2");
  expect_refused("train --model llama-tiny --seq-schedule 16:2,30:* --slices 4 --batch 16 --data " + path("text") +
                     " " + run("run"),
                 "--slices 4: slices are of equal length, and --seq is 30");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  ASSERT_EQ(sluice(sliced(2) + run("run") + "--steps 2").status, 0);
  expect_refused("train --slices 4 " + run("run"), "--slices 4 contradicts the run, which has 2; add --resume");
}

}  // namespace
}  // namespace sluice
