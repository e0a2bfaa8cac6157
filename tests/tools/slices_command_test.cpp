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

// Other numbers of slices add up in another order: close, and no more.
TEST_F(SlicesCommand, StatesGoOnInOthers) {
  ASSERT_EQ(sluice(sliced(2) + "--steps 6 --save-every 3 " + run("run")).status, 0);
  const std::vector<json> whole = lines("run");
  const std::string restore = "--steps 6 --restore " + path("run") + "/checkpoints/step-3 ";
  for (const int slices : {2, 4}) {
    const std::string name = "restored" + std::to_string(slices);
    const Finished f = sluice(sliced(slices) + restore + run(name));
    ASSERT_EQ(f.status, 0) << f.err;
    const std::vector<json> steps = lines(name);
    ASSERT_EQ(steps.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const double loss = steps[i]["loss"], expected = whole[3 + i]["loss"];
      EXPECT_NEAR(loss, expected, 2e-3 * expected);
      EXPECT_TRUE(slices != 2 || loss == expected) << loss;
    }
  }
  ASSERT_EQ(signalled(sliced(2) + "--steps 60 " + run("stopped"), "stopped", "TERM").status, 1);
  const Finished f = sluice("train --resume --slices 4 " + run("stopped"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(lines("stopped").size(), 60u);
  EXPECT_NE(f.err.find("--slices 4 (2 before)"), std::string::npos) << f.err;
}

TEST_F(SlicesCommand, AreLookedForInTheLongestSequences) {
  const std::string plan =
      "plan --model llama-tiny --batch 1 --max-seq --device-memory 6MiB --host-memory 32MiB --json ";
  const auto longest = [&](const std::string& options) {
    const Finished f = sluice(plan + options);
    EXPECT_EQ(f.status, 0) << f.err;
    return json::parse(f.out)["max_seq"]["tokens"].get<int>();
  };
  const int sliced = longest("--slices 4");
  EXPECT_EQ(sliced % 4, 0);
  EXPECT_GT(sliced, longest(""));
}

TEST_F(SlicesCommand, PackedActivationsAreThoseOfASlice) {
  const std::string command = sliced(4) + "--activations host --activation-dtype int8 --steps 3 ";
  ASSERT_EQ(sluice(command + run("packed")).status, 0);
  ASSERT_EQ(sluice(sliced(4) + "--activations host --steps 3 " + run("plain")).status, 0);
  EXPECT_EQ(lines("packed").front()["loss"], lines("plain").front()["loss"])
      << "the loss of a step does not depend on it";
  EXPECT_NE(lines("packed").back()["loss"], lines("plain").back()["loss"]);
  EXPECT_NEAR(lines("packed").back()["loss"].get<double>(), lines("plain").back()["loss"].get<double>(), 0.05);
}

TEST_F(SlicesCommand, ArePlanned) {
  const json plan = planned("--slices 4 --group 2");
  EXPECT_EQ(plan["schedule"]["slices"], 4);
  EXPECT_EQ(plan["schedule"]["micro_batches"], 16);
  EXPECT_EQ(plan["schedule"]["group"], 2);
  EXPECT_NE(sluice("plan --model llama-tiny --seq 64 --slices 4").out.find("keys and values"), std::string::npos);
}

/// Groups are counted in sequences, of which each has all of its slices.
TEST_F(SlicesCommand, AreInGroupsOfSequencesInAPipeline) {
  const std::string plan = "plan --model llama-tiny --seq 64 --slices 4 --ranks 2 --pp 2 ",
                    interleaved = plan + "--batch 4 --pipeline interleaved --chunks 2 ";
  EXPECT_EQ(sluice(interleaved + "--group 2").status, 0);
  expect_refused(interleaved + "--group 4", "--pp 2");
  expect_refused(interleaved + "--schedule vertical", "--pp 2");
  EXPECT_EQ(sluice(plan + "--batch 5 --group 3").status, 0);
}

TEST_F(SlicesCommand, RefusesWhatCanNotBeSliced) {
  const std::string train = options() + run("run");
  expect_refused(train + "--slices 0", "--slices");
  expect_refused(train + "--slices 5", "--slices 5: slices are of equal length, and --seq is 32; give what divides it");
  expect_refused(train + "--slices 2 --cp 2", "--slices 2 with --cp 2");
  expect_refused(train + "--slices 2 --ranks 2 --pp 2 --pipeline zb-h1", "--pipeline zb-h1 with --slices");
  expect_refused(train + "--slices 16 --ranks 4 --tp 4", "--tp 4: a micro-batch has 2 tokens a slice");
  expect_refused("train --model llama-tiny --seq-schedule 16:2,30:* --slices 4 --batch 16 --data " + path("text") +
                     " " + run("run"),
                 "--slices 4: slices are of equal length, and --seq is 30");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  ASSERT_EQ(sluice(sliced(2) + run("run") + "--steps 2").status, 0);
  expect_refused("train --slices 4 " + run("run"), "--slices 4 contradicts the run, which has 2; add --resume");
}

}  // namespace
}  // namespace sluice
