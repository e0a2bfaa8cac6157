// What is held out and what else a run is evaluated on, as a person meets it; and that `eval` of its model gives the
// run's losses again, to the bit.
#include <cstdint>
#include <random>

#include "io/checksum.h"
#include "run_command.h"

namespace sluice {
namespace {

class EvalSets : public RunCommandTest {
 protected:
  void SetUp() override {
    RunCommandTest::SetUp();
    write("docs.jsonl", documents(1, 300));
    write("wiki.jsonl", documents(2, 20));
    write("code.txt", "int main() { return 0; }\n" + std::string(300, '/') + "\nvoid f() {}\n");
  }

  /// Lines of words, of other words for every seed.
  static std::string documents(std::uint64_t seed, int count) {
    std::mt19937_64 random(seed);
    std::string text;
    for (int d = 0; d < count; ++d) {
      std::string words;
      for (std::uint64_t w = 3 + random() % 12; w > 0; --w)
        words += std::string(1 + random() % 3, static_cast<char>('a' + random() % (4 + seed))) + " ";
      text += "{\"text\": \"" + words + "\"}\n";
    }
    return text;
  }

  std::string tiny() const { return "train --model llama-tiny --seq 32 --batch 4 --warmup 1 --steps 4 "; }
  std::string on(const std::string& name) const { return "--data " + path(name) + " "; }
  json metrics_line(const std::string& name, int number) const {
    std::stringstream text(read(path(name) + "/metrics.jsonl"));
    std::string line;
    for (int i = 0; i < number; ++i) std::getline(text, line);
    return json::parse(line);
  }
  json eval(const std::string& arguments) const {
    const Finished f = sluice("eval --json " + arguments);
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json();
  }

  /// The run ends with these sets, and `eval` of its model has the same doubles.
  void expect_again(const std::string& command, const std::vector<std::string>& names) const {
    SCOPED_TRACE(command);
    const Finished trained = sluice(command + " " + run("run"));
    ASSERT_EQ(trained.status, 0) << trained.err;
    const json ended = result("run")["eval"];
    ASSERT_EQ(ended.size(), names.size()) << ended;
    for (const std::string& name : names) {
      ASSERT_TRUE(ended.contains(name)) << ended;
      EXPECT_GT(ended[name].get<double>(), 0);
      if (name != "held_out") {
        EXPECT_NE(trained.out.find("validation loss of " + name), std::string::npos);
      }
    }
    EXPECT_EQ(metrics_line("run", 4)["eval"], ended);
    const json again = eval("--model " + path("run"));
    EXPECT_EQ(again["eval"], ended);
    EXPECT_EQ(eval("--batch 2 --micro-batch 1 --model " + path("run"))["eval"], ended) << "other passes";
    std::filesystem::remove_all(path("run"));
  }
};

TEST_F(EvalSets, EvalGivesTheLossesOfTheRunAgain) {
  for (const std::string type : {"fp32 ", "bf16 "}) {
    const std::string train = tiny() + "--dtype " + type;
    expect_again(train + on("docs.jsonl"), {"held_out"});
    expect_again(train + on("text") + "--eval-batches 1 --ranks 2", {"held_out"});
    expect_again(train + on("docs.jsonl") + "--eval-split 0.1 --eval-batches all --eval-data wiki=" +
                     path("wiki.jsonl") + " --eval-data " + path("code.txt"),
                 {"held_out", "wiki", "code"});
  }
}

TEST_F(EvalSets, OfPackedDocumentsToo) {
  for (const char* name : {"docs", "wiki"})
    ASSERT_EQ(sluice("data tokenize --pack 32 --too-long cut " + path(name) + std::string(".jsonl --output ") +
                     path(name) + ".tokens")
                  .status,
              0);
  for (const std::string type : {"fp32 ", "bf16 "})
    expect_again(tiny() + "--eval-split 0.1 --dtype " + type + on("docs.tokens") + "--eval-data " + path("wiki.tokens"),
                 {"held_out", "wiki"});
}

TEST_F(EvalSets, WhatIsHeldOutIsSaidFirstAndInTheResult) {
  const Finished f = sluice(tiny() + on("docs.jsonl") + run("run") + "--eval-every 2");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("held out for evaluation: the last "), std::string::npos) << f.err;
  EXPECT_NE(f.err.find(" of 300 on)"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("--eval-split, --eval-data"), std::string::npos) << f.err;
  EXPECT_EQ(metrics_line("run", 2)["eval"]["held_out"], metrics_line("run", 2)["eval_loss"]);
  EXPECT_FALSE(metrics_line("run", 3).contains("eval"));
  EXPECT_EQ(result("run")["eval"]["held_out"], result("run")["eval_loss"]);
  EXPECT_NE(sluice("train --help").out.find("--eval-split"), std::string::npos);
}

TEST_F(EvalSets, WithoutASetNothingIsEvaluatedAndNoNumberInvented) {
  const std::string command = tiny() + on("text") + "--eval-split 0 " + run("run");
  const Finished f = sluice(command);
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("nothing of the data is held out"), std::string::npos) << f.err;
  EXPECT_NE(f.out.find("nothing was evaluated"), std::string::npos) << f.out;
  EXPECT_EQ(f.out.find("loss"), std::string::npos) << f.out;
  EXPECT_TRUE(result("run")["eval_loss"].is_null());
  EXPECT_EQ(result("run")["eval"], json::object());
  EXPECT_FALSE(metrics_line("run", 4).contains("eval"));
  const Finished complete = sluice(command);
  EXPECT_EQ(complete.status, 0) << complete.err;
  EXPECT_NE(complete.out.find("nothing was evaluated"), std::string::npos) << complete.out;
  const Finished refused = sluice("eval --model " + path("run"));
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("holds out nothing"), std::string::npos) << refused.err;
  EXPECT_GT(eval("--all-text --model " + path("run"))["loss"], 0);
}

TEST_F(EvalSets, WithSetsOfTheirOwnAllOfTheDataIsTrainedOn) {
  ASSERT_EQ(sluice(tiny() + on("docs.jsonl") + run("run") + "--eval-data " + path("wiki.jsonl")).status, 0);
  EXPECT_EQ(result("run")["eval"].size(), 1u);
  EXPECT_EQ(result("run")["eval_loss"], result("run")["eval"]["wiki"]) << "the only one";
  ASSERT_EQ(sluice(tiny() + on("docs.jsonl") + run("two") + "--eval-data " + path("wiki.jsonl") + " --eval-data " +
                   path("code.txt"))
                .status,
            0);
  EXPECT_TRUE(result("two")["eval_loss"].is_null()) << "which of them?";
  EXPECT_EQ(result("two")["eval"]["wiki"], result("run")["eval"]["wiki"]);
}

TEST_F(EvalSets, WhatDoesNotServeIsRefusedBeforeAnythingIsTouched) {
  const std::string train = tiny() + on("text") + run("run");
  for (const char* share : {"0.51", "-0.1", "nan", "1"})
    expect_refused_untouched(train + "--eval-split " + share, "--eval-split");
  const std::string wiki = "--eval-data " + path("wiki.jsonl") + " ";
  expect_refused_untouched(train + wiki + "--eval-data wiki=" + path("code.txt"), "there is another set 'wiki'");
  expect_refused_untouched(train + "--eval-split 0.1 --eval-data held_out=" + path("code.txt"), "another set");
  expect_refused_untouched(train + "--eval-data " + path("missing.txt"), "missing.txt");
  expect_refused_untouched(train + "--eval-data =" + path("code.txt"), "NAME=FILE");
  expect_refused_untouched(train + "--eval-data " + path("a=b.txt"),
                           "--eval-data a-b: can not open " + path("a=b.txt"));
  expect_refused_untouched("eval --model nowhere/x", "nowhere/x: no such file");
  expect_refused_untouched("eval --model llama-tiny", "--data is missing");
  expect_refused_untouched(train + "--eval-batches some", "'some' is neither a number of batches nor 'all'");
  ASSERT_EQ(
      sluice("data tokenize --pack 16 --too-long cut " + path("wiki.jsonl") + " --output " + path("p.tokens")).status,
      0);
  expect_refused_untouched(train + "--eval-data " + path("p.tokens"), "packed for sequences of 16");
  write("little", std::string(64, 'x'));
  const Finished f = sluice(tiny() + on("little") + "--run none");
  EXPECT_EQ(f.status, 2);
  EXPECT_NE(f.err.find("64 tokens are too few for sequences of 32"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("at least 65"), std::string::npos) << f.err;
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(EvalSets, MayChangeWhereARunGoesOnAndTheSplitMayNot) {
  ASSERT_EQ(sluice(options() + drive() + "--steps 40 " + run("whole")).status, 0);
  stop_a_run();
  expect_refused_untouched("train --resume --eval-split 0.1 " + run("run"), "--eval-split 0.1 contradicts the run");
  ASSERT_EQ(
      sluice("train --resume --eval-every 10 --eval-batches 2 --eval-data " + path("wiki.jsonl") + " " + run("run"))
          .status,
      0);
  EXPECT_EQ(result("run")["state_hash"], result("whole")["state_hash"]);
  EXPECT_EQ(result("run")["eval"].size(), 2u);
  EXPECT_TRUE(metrics_line("run", 40)["eval"].contains("wiki"));
  EXPECT_EQ(eval("--model " + path("run"))["eval"], result("run")["eval"]);
}

TEST_F(EvalSets, ARunOfAnEarlyVersionKeepsItsWindows) {
  ASSERT_EQ(sluice(options() + drive() + "--steps 40 " + run("whole")).status, 0);
  stop_a_run();
  auto stored = nlohmann::ordered_json::parse(read(path("run/run.json")));
  for (const char* key : {"eval_split", "eval_data"}) EXPECT_EQ(stored["config"].erase(key), 1u);
  stored.erase("seal");
  const std::string sealed = stored.dump();
  char seal[32];
  std::snprintf(seal, sizeof seal, "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(sealed)))));
  stored["seal"] = seal;
  write("run/run.json", stored.dump(1) + "\n");
  ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
  EXPECT_EQ(result("run"), result("whole"));
  EXPECT_EQ(eval("--model " + path("run"))["eval"], result("run")["eval"]);
}

}  // namespace
}  // namespace sluice
