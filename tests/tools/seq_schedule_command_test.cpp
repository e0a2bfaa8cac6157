// sluice train --seq-schedule: one run, several lengths of sequences, each with a plan of its own.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run_command.h"

namespace sluice {
namespace {

using nlohmann::json;

class SeqScheduleCommand : public RunCommandTest {
 protected:
  std::string begin(const std::string& data = "text") const {
    return "train --model llama-tiny --batch 4 --warmup 3 --eval-batches 1 --data " + path(data) + " ";
  }
  static std::string schedule() { return "--seq-schedule 16:4,64:3,32:* --steps 10 "; }
  json run_json(const std::string& name) const { return json::parse(read(path(name + "/run.json"))); }
};

TEST_F(SeqScheduleCommand, EachLengthHasItsStepsWhereverStatesLie) {
  const std::vector<std::string> places{"--states host ", drive(), drive() + "--durable off ", "--ranks 2 --lots 4 ",
                                        "--lots 4 --micro-batch 1 " + drive()};
  std::vector<std::vector<json>> all;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::string name = "run" + std::to_string(i);
    const Finished f = sluice(begin() + schedule() + places[i] + run(name));
    ASSERT_EQ(f.status, 0) << f.err;
    all.push_back(lines(name));
    ASSERT_EQ(all.back().size(), 10u) << f.err;
    for (std::size_t s = 0; s < 10; ++s) {
      EXPECT_EQ(all.back()[s]["step"], s + 1);
      EXPECT_EQ(all.back()[s]["tokens"],
                all.back()[s > 0 ? s - 1 : 0]["tokens"].get<int>() + (s == 0 ? 0
                                                                             : 4 * (s < 4   ? 16
                                                                                    : s < 7 ? 64
                                                                                            : 32)))
          << s;
    }
    EXPECT_NE(f.err.find("steps 5 to 7: sequences of 64 tokens"), std::string::npos) << f.err;
    const bool durable = places[i] != places[2] && places[i].find("--nvme") != std::string::npos;
    EXPECT_EQ(f.err.find("saving the states") == std::string::npos, durable) << f.err;
    EXPECT_EQ(f.err.find("writing the states"), std::string::npos) << "those of a durable run stay where they are";
    EXPECT_EQ(run_json(name)["config"]["sequence"], 32);
    const json changes = run_json(name)["changes"];
    ASSERT_EQ(changes.size(), 2u) << changes.dump();
    EXPECT_EQ(changes[0]["from"], 5);
    EXPECT_EQ(changes[1]["from"], 8);
    EXPECT_EQ(changes[1]["was"]["sequence"], 64);
  }
  EXPECT_EQ(all[1], all[0]) << "states on the drive";
  EXPECT_EQ(all[2], all[0]) << "and not durable";
  EXPECT_EQ(result("run1"), result("run0"));
  EXPECT_EQ(result("run2"), result("run0"));
  EXPECT_EQ(all[3], all[4]) << "on two ranks";
  EXPECT_EQ(result("run3"), result("run4"));
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
  // Until another length begins the run is the one that has the first alone.
  const Finished f = sluice(begin() + "--lr-schedule constant --seq 16 --steps 4 " + run("short"));
  ASSERT_EQ(f.status, 0) << f.err;
  ASSERT_EQ(sluice(begin() + "--lr-schedule constant " + schedule() + run("constant")).status, 0);
  const std::vector<json> shorter = lines("short"), whole = lines("constant");
  for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(whole[s]["loss"], shorter[s]["loss"]) << s;
  // What was held out is evaluated with the last length.
  const Finished evaluated = sluice("eval --model " + path("run0") + " --json");
  ASSERT_EQ(evaluated.status, 0) << evaluated.err;
  EXPECT_EQ(json::parse(evaluated.out)["eval"]["held_out"], result("run0")["eval"]["held_out"]) << evaluated.out;
}

TEST_F(SeqScheduleCommand, AStoppedRunGoesOnInItsPhase) {
  const std::map<std::string, std::vector<int>> stops{{drive(), {5, 18}}, {"--states host ", {12}}};
  for (const auto& [where, after] : stops) {
    const std::string command = begin() + "--seq-schedule 16:12,64:8,32:* --steps 26 " + where;
    for (const int lines_min : after) {
      ASSERT_EQ(signalled(command + run("run"), "run", "TERM", lines_min).status, 1);
      const Finished f = sluice("train --resume " + run("run"));
      ASSERT_EQ(f.status, 0) << f.err;
      if (lines_min == after.front()) {
        std::filesystem::rename(path("run"), path("first"));
        continue;
      }
      EXPECT_EQ(lines("run"), lines("first"));
      EXPECT_EQ(result("run"), result("first"));
      std::filesystem::remove_all(path("run"));
    }
    ASSERT_EQ(sluice(command + run("whole")).status, 0);
    EXPECT_EQ(lines("first"), lines("whole"));
    EXPECT_EQ(result("first"), result("whole"));
    std::filesystem::remove_all(path("first"));
    // One that began without goes on with one.
    ASSERT_EQ(signalled(begin() + "--seq 16 --steps 26 " + where + run("later"), "later", "TERM", 4).status, 1);
    const std::string go_on = "train --resume " + run("later") + "--seq-schedule ";
    expect_refused_untouched(go_on + "32:12,64:*", "give one that begins with 16:STEPS");
    const Finished late = sluice(go_on + "16:2,64:*");
    EXPECT_EQ(late.status, 2) << late.err;
    EXPECT_NE(late.err.find("with sequences of 16, which --seq-schedule 16:2,64:* has to step 2 alone"),
              std::string::npos)
        << late.err;
    const Finished f = sluice(go_on + "16:12,64:8,32:*");
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(lines("later"), lines("whole"));
    EXPECT_EQ(result("later"), result("whole"));
    EXPECT_EQ(run_json("later")["changes"][0]["was"]["seq_schedule"], "");
    for (const char* name : {"later", "whole"}) std::filesystem::remove_all(path(name));
  }
  // All steps that are left are those of the run, however many a new one would have.
  ASSERT_EQ(signalled(begin() + "--seq 16 --steps 150 " + run("long"), "long", "TERM", 4).status, 1);
  ASSERT_EQ(sluice("train --resume " + run("long") + "--seq-schedule 16:120,32:*").status, 0);
  EXPECT_EQ(lines("long").size(), 150u);
  EXPECT_EQ(run_json("long")["changes"].back()["from"], 121);
  // More steps are of the last length.
  ASSERT_EQ(signalled(begin() + "--seq-schedule 16:12,32:* --steps 26 " + run("run"), "run", "TERM", 4).status, 1);
  expect_refused_untouched("train --seq-schedule 16:14,32:* " + run("run"), "add --resume");
  expect_refused_untouched("train --resume --seq 32 " + run("run"), "contradicts the run");
  expect_refused_untouched("train --resume --steps 12 " + run("run"), "none is left for sequences of 32");
  const Finished f = sluice("train --resume --steps 36 " + run("run"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(lines("run").size(), 36u);
}

// Conversations and documents of any length: each in sequences of about its own.
TEST_F(SeqScheduleCommand, DocumentsOfTheirLengthsTakeTurns) {
  const std::string text = read(path("text"));
  std::string lines_of_text;
  for (std::size_t i = 0; i < 300; ++i) lines_of_text += json{{"text", text.substr(i, 3 + i * 37 % 90)}}.dump() + "\n";
  write("docs.jsonl", lines_of_text);
  ASSERT_EQ(sluice("data tokenize --tokenizer bytes --input " + path("docs.jsonl") + " --output " + path("docs.tokens"))
                .status,
            0);
  const std::string turns = "--seq-schedule 2-32:3,33-96:2,... --steps 13 ";
  std::vector<std::vector<json>> all;
  for (const auto& [name, options] : std::map<std::string, std::string>{
           {"run0", begin("docs.tokens") + "--states host "},
           {"run1", begin("docs.tokens") + drive()},
           {"run2", begin("docs.jsonl") + "--tokenizer bytes " + drive() + "--durable off "},
           {"run3", begin("docs.tokens") + drive()}}) {
    const bool is_stopped = name == "run3";
    if (is_stopped) {
      ASSERT_EQ(signalled(options + turns + run(name), name, "TERM", 6).status, 1);
    } else {
      const Finished f = sluice(options + turns + run(name));
      ASSERT_EQ(f.status, 0) << f.err;
      EXPECT_NE(f.err.find("whole documents of 2 to 32 tokens: "), std::string::npos) << f.err;
      EXPECT_NE(f.err.find("; 9 steps see "), std::string::npos) << f.err;
      EXPECT_NE(f.err.find("9 steps in 3 turns, the first of them 1 to 3: whole documents of 2 to 32 tokens"),
                std::string::npos)
          << f.err;
      EXPECT_NE(f.err.find("step 4: from here on whole documents of 33 to 96 tokens, to step 5"), std::string::npos)
          << f.err;
      EXPECT_EQ(f.err.find("are not trained on"), std::string::npos) << f.err;
    }
    const Finished over = sluice("train --resume " + run(name));
    ASSERT_EQ(over.status, 0) << over.err;
    all.push_back(lines(name));
    ASSERT_EQ(all.back().size(), 13u);
    EXPECT_EQ(result(name), result("run0"));
  }
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i], all[0]) << i;
  EXPECT_EQ(run_json("run1")["config"]["document_mask"], true);
  EXPECT_EQ(run_json("run1")["config"]["sequence"], 32);
  const Finished planned = sluice("plan " + begin("docs.tokens").substr(6) + turns + drive() + "--json");
  ASSERT_EQ(planned.status, 0) << planned.err;
  const json phases = json::parse(planned.out)["phases"];
  ASSERT_EQ(phases.size(), 5u);
  EXPECT_EQ(phases[1]["shortest_document"], 33);
  EXPECT_EQ(phases[4]["first_step"], 11) << phases.dump();
  EXPECT_EQ(phases[4]["last_step"], 13);
  const Finished some = sluice(begin("docs.tokens") + "--seq-schedule 2-20:1,40-96:1,... --steps 2 " + run("some"));
  ASSERT_EQ(some.status, 0) << some.err;
  EXPECT_NE(some.err.find(" documents for training have lengths that --seq-schedule 2-20:1,40-96:1,... takes nowhere"),
            std::string::npos)
      << some.err;
  // The same command goes on without its steps, and so does a run that has none of this yet.
  const std::string begun = begin("docs.tokens") + "--states host --seq-schedule 2-32:3,33-96:2,... " + run("run0");
  const Finished same = sluice(begun);
  EXPECT_EQ(same.status, 0) << same.err;
  ASSERT_EQ(signalled(begin("docs.tokens") + "--seq 32 --document-mask on --steps 90 " + run("late"), "late", "TERM", 4)
                .status,
            1);
  const Finished late = sluice("train --resume --seq-schedule 32:80,2-32:3,33-96:2,... " + run("late"));
  ASSERT_EQ(late.status, 0) << late.err;
  EXPECT_EQ(lines("late").size(), 90u);
  EXPECT_NE(late.err.find("whole documents of 33 to 96 tokens: "), std::string::npos) << late.err;
  const auto refused = [&](const std::string& options, const std::string& what) {
    expect_refused(options + run("none"), what);
    EXPECT_FALSE(std::filesystem::exists(path("none")));
  };
  refused(begin("docs.tokens") + "--seq-schedule 2-32:3,97-128:* ",
          "no document that is trained on has 97 to 128 tokens");
  refused(begin("docs.tokens") + turns + "--document-mask off ", "leave out --document-mask off");
  refused(begin() + turns, "a text is one document");
  std::string nano;  // nanoGPT's: two bytes a token, and nothing else
  for (const char c : text) nano += {c, '\0'};
  write("docs.bin", nano);
  refused(begin("docs.bin") + turns, "does not say where they end");
  expect_refused("eval --model llama-tiny --data " + path("docs.tokens") + " --seq-schedule 2-32:3", "--seq-schedule");
}

TEST_F(SeqScheduleCommand, StepsHaveAsManyTokensWhateverTheirLength) {
  const std::string command = "train --model llama-tiny --warmup 3 --eval-batches 1 --data " + path("text") +
                              " --seq-schedule 16x8:3,64x2:2,... ";
  for (const std::string& where : {std::string("--states host "), drive(), drive() + "--durable off "}) {
    const std::string name = "run" + std::to_string(where.size());
    ASSERT_EQ(sluice(command + where + "--steps 9 " + run(name)).status, 0);
    const std::vector<json> all = lines(name);
    ASSERT_EQ(all.size(), 9u);
    for (std::size_t s = 0; s < all.size(); ++s) EXPECT_EQ(all[s]["tokens"], 128 * (s + 1));
    EXPECT_EQ(lines(name), lines("run" + std::to_string(std::string("--states host ").size()))) << where;
    EXPECT_EQ(run_json(name)["config"]["batch"], 2);
    EXPECT_EQ(sluice("eval --model " + path(name) + " --json").status, 0);
  }
  // A run that is stopped in the middle, on two ranks, and goes on with more steps.
  const std::string ranks = command + "--ranks 2 --steps 40 ";
  ASSERT_EQ(signalled(ranks + run("stopped"), "stopped", "TERM", 8).status, 1);
  ASSERT_EQ(sluice("train --resume " + run("stopped")).status, 0);
  ASSERT_EQ(sluice(ranks + run("whole")).status, 0);
  EXPECT_EQ(lines("stopped"), lines("whole"));
  EXPECT_EQ(result("stopped"), result("whole"));
  expect_refused(command + "--batch 4 --steps 9 " + run("none"), "leave out --batch");
  expect_refused(command + "--ranks 4 --steps 9 " + run("none"), "--batch 2 is not a multiple of");
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

TEST_F(SeqScheduleCommand, PlanShowsEveryPhase) {
  const std::string options = "plan --model llama-tiny --batch 4 " + schedule() + drive();
  const Finished f = sluice(options);
  ASSERT_EQ(f.status, 0) << f.err;
  for (const char* what : {"steps 1 to 4: sequences of 16 tokens", "steps 5 to 7: sequences of 64 tokens",
                           "steps 8 to 10: sequences of 32 tokens", "; 4 steps take"})
    EXPECT_NE(f.out.find(what), std::string::npos) << f.out;
  const Finished told = sluice(options + "--json");
  const json phases = json::parse(told.out)["phases"];
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[1]["sequence"], 64);
  EXPECT_EQ(phases[1]["first_step"], 5);
  EXPECT_EQ(phases[1]["last_step"], 7);
  // Measured beside other tests, so that which is longer says nothing.
  for (const json& phase : phases) EXPECT_GT(phase["step_seconds"].get<double>(), 0);
  EXPECT_FALSE(std::filesystem::exists(path("runs")));
}

TEST_F(SeqScheduleCommand, IsRefusedBeforeAnythingIsThere) {
  const auto refused = [&](const std::string& options, const std::string& what) {
    expect_refused(begin() + options, what);
    EXPECT_FALSE(std::filesystem::exists(path("runs")));
    EXPECT_FALSE(std::filesystem::exists(path("run")));
  };
  refused(run("run") + "--seq-schedule 16:x", "is not LENGTH:STEPS");
  refused(run("run") + "--seq-schedule 16:4,64:* --seq 16", "leave out --seq");
  refused(run("run") + "--seq-schedule 16:4,64:4 --steps 9", "has 8 steps, and --steps is 9");
  refused(run("run") + "--seq-schedule 16:4,64:* --steps 4", "none is left for sequences of 64");
  refused("--run none --seq-schedule 16:4,64:4", "--run none keeps nothing");
  refused(run("run") + "--seq-schedule 16:4,100000:4", "is longer than the");
  refused(run("run") + "--cp 2 --ranks 2 --seq-schedule 16:4,63:4", "63");
  write("short", read(path("text")).substr(0, 300));
  expect_refused(begin("short") + run("run") + "--seq-schedule 16:4,256:4", "shorter ones in --seq-schedule");
  // What a later length would end at is found before the first step.
  write("few", read(path("text")).substr(0, 200));
  refused(run("run") + "--seq-schedule 16:4,256:4 --eval-data few=" + path("few"), "few");
  const Finished late = sluice(begin() + run("run") + "--seq-schedule 16:4,256:4 --eval-split 0.01");
  EXPECT_EQ(late.status, 2) << late.err;
  EXPECT_NE(late.err.find("are held out, are too few for sequences of 256"), std::string::npos) << late.err;
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  // The second length is the one that does not fit.
  for (const char* command : {"train", "plan"}) {
    const Finished f = sluice(command + begin().substr(5) + run("run") + "--device-memory 3300KiB --nvme " +
                              path("nvme") + " --seq-schedule 16:4,256:4");
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find("--seq-schedule, sequences of 256 tokens: llama-tiny does not fit: the smallest"),
              std::string::npos)
        << f.err;
    EXPECT_FALSE(std::filesystem::exists(path("run")));
  }
  expect_refused("plan --model llama-tiny --max-seq --seq-schedule 16:4,64:*", "give one of them");
}

}  // namespace
}  // namespace sluice
