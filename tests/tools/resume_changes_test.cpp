// sluice train --resume: what was moved, and what may be another from here on.
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "run_command.h"
#include "src/train/request/run_config.h"

namespace sluice {
namespace {

using nlohmann::json;

class ResumeChanges : public RunCommandTest {
 protected:
  /// Ends the run two steps from where it stands, and expects its lines to be those of the command's run that was never
  /// changed, and the step behind them to begin with the same parameters. The command is of more steps, which nobody
  /// has to make.
  void expect_lines_of_whole(const std::string& command) {
    const std::size_t stood = lines("run").size();
    const Finished f = sluice(go_on() + "--steps " + std::to_string(stood + 2));
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
    ASSERT_EQ(signalled(command + run("whole"), "whole", "TERM", static_cast<int>(stood) + 1).status, 1);
    std::vector<json> whole = lines("whole"), changed = lines("run");
    ASSERT_GT(whole.size(), stood);
    whole.resize(stood + 1);
    changed.resize(stood + 1);
    for (std::vector<json>* of : {&whole, &changed}) of->back().erase("lr");  // follows the number of steps
    EXPECT_EQ(changed, whole);
    for (const auto& swap : std::filesystem::directory_iterator(path("nvme"))) std::filesystem::remove(swap);
    std::filesystem::remove_all(path("whole"));
  }
  std::string go_on() const { return "train --resume " + run("run"); }
  std::int64_t done(const std::string& name = "run") const { return lines(name).back()["step"]; }
  json run_json(const std::string& name) const { return json::parse(read(path(name + "/run.json"))); }
  /// Lines of the run and of one that was never stopped.
  void expect_as_whole() const {
    ASSERT_EQ(sluice(options() + drive() + run("whole") + "--steps 40").status, 0);
    EXPECT_EQ(lines("run"), lines("whole"));
    EXPECT_EQ(result("run"), result("whole"));
  }
  std::size_t texts_as_tokens() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path("run/tokens")), {}));
  }
  static double rate(std::int64_t step, std::int64_t steps, double lr = 3e-4, double lr_end = 3e-5) {
    OptimizerConfig o;
    o.lr = lr, o.lr_end = lr_end, o.warmup_steps = 3;
    return learning_rate(o, step, steps);
  }
};

TEST_F(ResumeChanges, OptionsAreCheckedBesideThoseOfTheRun) {
  stop_a_run();
  const Finished f = sluice(go_on() + "--drive-tbw 600TB");
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("rated for 600 TB"), std::string::npos) << f.err;
  ASSERT_EQ(signalled(options() + "--states host --steps 40 " + run("host"), "host", "TERM").status, 1);
  expect_refused_untouched("train --resume --drive-tbw 600TB " + run("host"), "there are none");
}

TEST_F(ResumeChanges, DataThatWasMovedIsKnownByItsContent) {
  stop_a_run();
  std::filesystem::rename(path("text"), path("moved"));
  expect_refused_untouched(go_on(), "--data PATH says where");
  const std::size_t before = texts_as_tokens();
  std::string other = read(path("moved"));
  other[7000] = '#';
  write("other", other);
  expect_refused_untouched(go_on() + "--data " + path("other"), "is not the data that the run began with");
  EXPECT_EQ(texts_as_tokens(), before) << "tokens of the other text were left behind";
  const Finished f = sluice(go_on() + "--data " + path("moved"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(run_json("run")["config"]["data"], path("moved"));
  std::filesystem::rename(path("moved"), path("text"));
  expect_as_whole();
}

TEST_F(ResumeChanges, ATokenFileThatWasMovedTooAndAnotherIsRefused) {
  ASSERT_EQ(sluice("data tokenize --input " + path("text") + " --output " + path("a.tokens")).status, 0);
  const std::string begin = "train --model llama-tiny --seq 32 --batch 4 --steps 40 --data " + path("a.tokens") + " ";
  ASSERT_EQ(signalled(begin + drive() + run("run"), "run", "TERM").status, 1);
  std::filesystem::rename(path("a.tokens"), path("b.tokens"));
  expect_refused_untouched(go_on(), path("a.tokens"));
  write("short", read(path("text")).substr(0, 9000));
  ASSERT_EQ(sluice("data tokenize --input " + path("short") + " --output " + path("a.tokens")).status, 0);
  expect_refused_untouched(go_on(), "is not the data that the run began with; put it back");
  const Finished f = sluice(go_on() + "--data " + path("b.tokens"));
  EXPECT_EQ(f.status, 0) << f.err;
}

TEST_F(ResumeChanges, ASwapFileThatWasMovedIsFoundWhereItIsSaidToBe) {
  stop_a_run();
  const std::string name = std::filesystem::path(swap()).filename();
  std::filesystem::create_directory(path("drive2"));
  std::filesystem::rename(path("nvme/" + name), path("drive2/" + name));
  for (const std::string& what : {name + ", which is not in " + path("nvme"), std::string("--nvme DIR")})
    expect_refused_untouched(go_on(), what);
  expect_refused_untouched(go_on() + "--nvme " + path("run"), name + ", which is not in " + path("run"));
  expect_refused_untouched("train " + run("run") + "--nvme " + path("nvme") + "," + path("drive2"),
                           "is striped over 1");
  const Finished f = signalled(go_on() + "--nvme " + path("drive2"), "run", "TERM", static_cast<int>(done()) + 2);
  ASSERT_EQ(f.status, 1) << f.err;
  EXPECT_EQ(sluice(go_on()).status, 0) << "it is remembered";
  EXPECT_TRUE(std::filesystem::is_empty(path("drive2")));
  expect_as_whole();
}

TEST_F(ResumeChanges, ADriveWhoseDirectoryIsGoneIsNamed) {
  stop_a_run();
  const std::string name = std::filesystem::path(swap()).filename();
  std::filesystem::rename(path("nvme"), path("elsewhere"));
  expect_refused_untouched(go_on(), name + ", which is not in " + path("nvme"));
  EXPECT_EQ(sluice(go_on() + "--nvme " + path("elsewhere")).status, 0);
  // What is not durable has nothing there.
  const std::string command = options() + "--nvme " + path("elsewhere") + " --durable off --steps 40 " + run("off");
  ASSERT_EQ(signalled(command, "off", "TERM").status, 1);
  std::filesystem::rename(path("elsewhere"), path("nvme"));
  expect_refused_untouched("train --resume " + run("off"), "--nvme " + path("elsewhere") + ": No such file");
  EXPECT_EQ(sluice("train --resume --nvme " + path("nvme") + " " + run("off")).status, 0);
}

TEST_F(ResumeChanges, MoreSteps) {
  for (const std::string& where : {drive(), std::string("--states host ")}) {
    ASSERT_EQ(signalled(options() + where + run("run") + "--steps 40", "run", "TERM").status, 1);
    const std::int64_t stood = done();
    const Finished f = sluice(go_on() + "--steps 50");
    ASSERT_EQ(f.status, 0) << f.err;
    const std::string from = "from step " + std::to_string(stood + 1) + " on with --steps 50 (40 before); the learning";
    EXPECT_NE(f.err.find(from), std::string::npos) << f.err;
    const std::vector<json> all = lines("run");
    ASSERT_EQ(all.size(), 50u);
    for (const json& line : all) {
      const std::int64_t step = line["step"];
      EXPECT_DOUBLE_EQ(line["lr"].get<double>(), rate(step, step <= stood ? 40 : 50)) << step;
    }
    const json change{{"from", stood + 1}, {"was", {{"steps", 40}}}, {"is", {{"steps", 50}}}};
    EXPECT_EQ(run_json("run")["changes"], json::array({change}));
    expect_refused_untouched(go_on() + "--steps 60", "is complete after 50");
    std::filesystem::remove_all(path("run"));
  }
}

TEST_F(ResumeChanges, FewerStepsButNotBelowWhereTheRunStands) {
  stop_a_run();
  const std::int64_t stood = done();
  expect_refused_untouched(go_on() + "--steps 1", "the run stands at step " + std::to_string(stood));
  const Finished f = sluice(go_on() + "--steps " + std::to_string(stood));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(done(), stood);
  EXPECT_EQ(result("run")["steps"], stood);
  EXPECT_TRUE(std::filesystem::exists(path("run/model.safetensors")));
  expect_refused_untouched(go_on() + "--lr 1e-3", "is complete after " + std::to_string(stood));
}

TEST_F(ResumeChanges, RateAndOptimizerAreRememberedWithTheStepFromWhichTheyHold) {
  const std::string command = options() + drive() + "--durable off --steps 40 ";
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  const std::int64_t stood = done();
  copy("run", "copy");
  const std::string otherwise =
      " --lr 1e-3 --lr-schedule linear --warmup 2 --weight-decay 0 --beta1 0.8 --beta2 0.9 --eps 1e-6 --clip 0.5";
  const std::string further = "train --resume " + run("copy") + otherwise;
  ASSERT_EQ(signalled(further, "copy", "TERM", static_cast<int>(stood) + 3).status, 1);
  ASSERT_EQ(sluice("train --resume " + run("copy")).status, 0) << "as it went on last";
  ASSERT_EQ(sluice(go_on() + otherwise).status, 0);
  EXPECT_EQ(lines("run"), lines("copy"));
  EXPECT_EQ(result("run"), result("copy"));
  const json changes = run_json("run")["changes"];
  EXPECT_EQ(changes, run_json("copy")["changes"]);
  ASSERT_EQ(changes.size(), 1u) << changes;
  EXPECT_EQ(changes[0]["from"], stood + 1);
  for (const char* key :
       {"lr", "lr_end", "lr_schedule", "warmup_steps", "weight_decay", "beta1", "beta2", "eps", "clip_norm"})
    EXPECT_TRUE(changes[0]["was"].contains(key) && changes[0]["is"].contains(key)) << key;
  EXPECT_DOUBLE_EQ(changes[0]["is"]["lr_end"].get<double>(), 1e-4) << "a tenth of --lr, as it was";
  EXPECT_DOUBLE_EQ(lines("run")[0]["lr"].get<double>(), rate(1, 40));
  EXPECT_NE(result("run")["state_hash"], json());
}

// Lines of steps before a change are made again with the rate that these steps had.
TEST_F(ResumeChanges, DamagedLinesAreMadeAgainAsTheirStepsWere) {
  stop_a_run();
  const std::int64_t stood = done();
  const Finished f = signalled(go_on() + "--lr 1e-3", "run", "TERM", static_cast<int>(stood) + 2);
  ASSERT_EQ(f.status, 1) << f.err;
  const std::vector<json> before = lines("run");
  std::string text = read(path("run/metrics.jsonl"));
  text[text.find('\n') + 15] = '\n';
  write("run/metrics.jsonl", text);
  ASSERT_EQ(sluice(go_on()).status, 0);
  const std::vector<json> after = lines("run");
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], before[i]) << i;
}

TEST_F(ResumeChanges, WhatChangesStepsNeedsTheWordResume) {
  stop_a_run();
  const std::string same = options() + drive() + run("run");
  expect_refused_untouched(same + "--steps 60", "add --resume to go on with it from here on");
  expect_refused_untouched(same + "--steps 40 --lr 1e-3", "add --resume to go on with it from here on");
  const Finished f = sluice(same + "--steps 60 --lr 1e-3 --resume");
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(done(), 60);
}

TEST_F(ResumeChanges, ThreadsMayChangeAndItIsSaidWhetherBitsDo) {
  stop_a_run();
  const int before = run_json("run")["config"]["threads"];
  const Finished f = sluice(go_on() + "--threads " + std::to_string(before + 1) +
                            " --optimizer-threads 2 --io threads" + " --queue-depth 4");
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("--threads " + std::to_string(before + 1) + " (" + std::to_string(before) + " before)"),
            std::string::npos)
      << f.err;
  EXPECT_NE(f.err.find("the number of threads"), std::string::npos) << f.err;
}

TEST_F(ResumeChanges, RanksMayChangeWhereTheLotsOfTheRunAreTheirs) {
  const std::string command =
      "train --model llama-tiny --seq 32 --batch 8 --lots 4 --warmup 3 --eval-batches 1 --data " + path("text") +
      " --nvme " + path("nvme") + " --device-memory 32MiB --host-memory 64MiB --steps 40 ";
  for (const char* kind : {"--durable on ", "--durable off "}) {
    SCOPED_TRACE(kind);
    const std::string name = kind[11] == 'n' ? "durable" : "saved", whole = name + ".whole";
    ASSERT_EQ(sluice(command + kind + run(whole) + "--ranks 2").status, 0);
    ASSERT_EQ(signalled(command + kind + run(name) + "--ranks 4", name, "TERM").status, 1);
    expect_refused_untouched("train --resume --ranks 3 " + run(name), "it can go on with 1, 2 or 4;");
    expect_refused_untouched("train --ranks 1 " + run(name), "add --resume to go on with it from here on");
    const Finished other =
        signalled("train --resume --ranks 1 " + run(name), name, "TERM", static_cast<int>(done(name)) + 3);
    ASSERT_EQ(other.status, 1) << other.err;
    EXPECT_NE(other.err.find("--ranks 1 (4 before)"), std::string::npos) << other.err;
    EXPECT_EQ(run_json(name)["config"]["ranks"], 1);
    ASSERT_EQ(sluice("train --resume --ranks 2 " + run(name)).status, 0);
    EXPECT_EQ(lines(name), lines(whole));
    EXPECT_EQ(result(name), result(whole));
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
}

TEST_F(ResumeChanges, BudgetsDrivesAndThePlanMayChangeToTheSameBits) {
  const std::string command = options() + drive() + "--steps 150 ";
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  std::filesystem::create_directory(path("drive2"));
  expect_refused_untouched("train --host-memory 16MiB " + run("run"), "add --resume to go on with it from here on");
  expect_refused_untouched(go_on() + "--host-memory 64KiB", "--host-memory");
  for (const std::string& change :
       {std::string("--host-memory 16MiB"), std::string("--device-memory 16MiB --group 1 --recompute full"),
        "--nvme " + path("nvme") + "," + path("drive2"), std::string("--durable off"),
        "--durable on --nvme " + path("drive2"), std::string("--states host --prefetch 1")}) {
    SCOPED_TRACE(change);
    const std::int64_t stood = done();
    const Finished f = signalled(go_on() + change, "run", "TERM", static_cast<int>(stood) + 3);
    ASSERT_EQ(f.status, 1) << f.err;
    EXPECT_NE(f.err.find("continuing after step " + std::to_string(stood)), std::string::npos) << f.err;
    const bool off = change == "--durable off", one = change.starts_with("--nvme");
    EXPECT_EQ(std::filesystem::exists(path("run/saved")), off);
    EXPECT_EQ(std::filesystem::exists(path("run/commit.0")), !off);
    EXPECT_EQ(std::filesystem::is_empty(path("drive2")), off || change.find("memory") != std::string::npos);
    EXPECT_EQ(std::filesystem::is_empty(path("nvme")), off || (!one && change.find("memory") == std::string::npos));
  }
  EXPECT_FALSE(run_json("run").contains("changes")) << "no bit of a step depends on any of it";
  expect_lines_of_whole(command);
}

/// Plans of other budgets and lengths find the states of a durable run where those before have left them.
TEST_F(ResumeChanges, StatesStayInTheSwapFileWhenPlansChange) {
  for (const std::string& ranks : {std::string(), std::string("--ranks 2 ")}) {
    const std::string command = options() + drive() + ranks + "--lots 4 --steps 150 ";
    ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
    const std::string swap = this->swap();
    const auto inode = [&] {
      struct stat st {};
      return stat(swap.c_str(), &st) == 0 ? st.st_ino : 0;
    };
    const auto first = inode();
    int same_blocks = 0, other_blocks = 0;
    std::vector<std::string> changes{"--host-memory 300KiB", "--group 1 --recompute full"};
    if (ranks.empty())
      changes.insert(changes.end(), {"--host-memory 64MiB --states host", "--activations nvme --states nvme",
                                     "--device-memory 16MiB --host-memory 16MiB --group 2"});
    for (const std::string& change : changes) {
      SCOPED_TRACE(ranks + change);
      const json before = run_json("run")["plan"]["layout"];
      const std::int64_t stood = done();
      const Finished f = signalled(go_on() + change, "run", "TERM", static_cast<int>(stood) + 3);
      ASSERT_EQ(f.status, 1) << f.err;
      EXPECT_NE(f.err.find("continuing after step " + std::to_string(stood)), std::string::npos) << f.err;
      EXPECT_EQ(f.err.find("writing the states"), std::string::npos) << f.err;
      EXPECT_EQ(inode(), first);
      EXPECT_FALSE(std::filesystem::exists(path("run/saved")));
      for (const auto& entry : std::filesystem::directory_iterator(path("run")))
        EXPECT_LE(entry.path().filename().string().find("commit.") == 0 ? entry.path().filename().string().size() : 0,
                  std::string("commit.0").size());
      ++(run_json("run")["plan"]["layout"] == before ? same_blocks : other_blocks);
    }
    EXPECT_GT(same_blocks, 0);
    EXPECT_GT(other_blocks, 0);
    expect_lines_of_whole(command);
    std::filesystem::remove_all(path("run"));
  }
}

/// Killed, or failing, at any call that such a change makes, the run goes on as it was or as it is to be.
TEST_F(ResumeChanges, PlansThatChangeAreKilledAtAnyCall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers want to be loaded first";
#endif
  ASSERT_EQ(signalled(options() + drive() + "--steps 150 " + run("run"), "run", "TERM").status, 1);
  const std::string steps = " --steps " + std::to_string(done() + 2) + " ";
  copy("run", "run.before");
  copy("nvme", "nvme.before");
  const auto put_back = [&] {
    for (const std::string name : {"run", "nvme"}) {
      std::filesystem::remove_all(path(name));
      copy(name + ".before", name);
    }
  };
  // Blocks become others, which is new records too; and they stay what they are.
  for (const std::string& change : {std::string("--host-memory 300KiB"), std::string("--activations nvme")}) {
    const std::string command = go_on() + change + steps;
    const int stride = change == "--activations nvme" ? 3 : 1;
    put_back();
    ASSERT_EQ(sluice(command).status, 0);
    const std::vector<json> whole = lines("run");
    const std::string model = read(path("run/model.safetensors"));
    int ended = 0;
    for (int n = 1;; n += stride) {
      const std::string error = n % 2 == 1 ? "kill" : "5";
      SCOPED_TRACE(change + ", call " + std::to_string(n) + " " + error);
      put_back();
      write("fail.sh", "export XDG_CACHE_HOME=" + path("cache") +
                           " LD_PRELOAD=" SLUICE_SYSTEM_CALLS " SLUICE_TEST_FAILING_CALL='" + std::to_string(n) + " " +
                           error + " " + path("") + " fsync rename'\n" SLUICE_BINARY " " + command + " >" +
                           path(".out") + " 2>" + path(".err") + "\n");
      const int status = std::system(("bash " + path("fail.sh") + " 2>/dev/null").c_str());
      // Steps have begun: what follows is a run as any other.
      const bool stepped = lines("run").size() + 2 > whole.size();
      if (status == 0 || stepped) break;
      ++ended;
      const Finished on = sluice(command);
      ASSERT_EQ(on.status, 0) << on.err;
      EXPECT_EQ(lines("run"), whole);
      EXPECT_EQ(read(path("run/model.safetensors")), model);
    }
    EXPECT_GT(ended, stride > 1 ? 1 : 5) << change;
  }
}

/// What cuts or keeps states otherwise: the states are the same ones, and the run says that it goes on to other bits.
TEST_F(ResumeChanges, StatesMayBeCutAndKeptOtherwise) {
  const std::string room = "--device-memory 32MiB --host-memory 64MiB ";
  const std::string command =
      options() + room + "--states nvme --nvme " + path("nvme") + " --durable off --steps 120 --ranks 2 ";
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  std::map<std::string, std::string> models;
  const std::string now = std::to_string(done());
  for (const std::string& change :
       {std::string(), std::string("--tp 2 --ranks 2"), std::string("--tp 2 --pp 2 --ranks 4 --lots 1"),
        std::string("--cp 2 --ranks 2"), std::string("--moments int8"), std::string("--moments bf16 --micro-batch 2"),
        std::string("--gradient-dtype bf16"), std::string("--activation-dtype int8")}) {
    SCOPED_TRACE(change);
    std::filesystem::remove_all(path("copy"));
    copy("run", "copy");
    const Finished f = sluice("train --resume " + change + " --steps " + now + " " + run("copy"));
    ASSERT_EQ(f.status, 0) << f.err;
    models[change] = read(path("copy/model.safetensors"));
    EXPECT_EQ(models[change], models[""]);
    EXPECT_EQ(f.err.find("its bits are not those of a run that goes on as before") == std::string::npos, change.empty())
        << f.err;
    // And a few steps of it.
    std::filesystem::remove_all(path("copy"));
    copy("run", "copy");
    const Finished on =
        sluice("train --resume " + change + " --steps " + std::to_string(done() + 3) + " " + run("copy"));
    ASSERT_EQ(on.status, 0) << on.err;
    EXPECT_NEAR(lines("copy").back()["loss"].get<double>(), 4.5, 2.0);
  }
  // Its model is of other numbers then.
  const Finished wide = sluice("train --resume --dtype fp32 --steps " + std::to_string(done() + 3) + " " + run("run"));
  ASSERT_EQ(wide.status, 0) << wide.err;
  EXPECT_NEAR(lines("run").back()["loss"].get<double>(), 4.5, 2.0);
}

TEST_F(ResumeChanges, WhatMayNotIsRefusedWithTheReason) {
  stop_a_run();
  const std::string data = "which tokens a step takes";
  for (const auto& [option, why] : std::vector<std::pair<std::string, std::string>>{
           {"--batch 8", data},
           {"--seq 64", data},
           {"--ranks 2", "add up in --lots 1: it can go on with 1;"},
           {"--seed 2", data},
           {"--model llama-25m", "its states are that model's"},
           {"--init " + path("nvme"), "which has none: weights are loaded before its first step"},
           {"--metrics " + path("m.jsonl"), "the lines of its steps are there"}})
    expect_refused_untouched(go_on() + option, why);
}

// With clipping a step's norm has to be known before its first update.
TEST_F(ResumeChanges, AnUpdateInTheBackwardPassCanNotBeginToClip) {
  const std::string command = options() + drive() + run("run") + "--clip 0 --update backward --steps 40 ";
  ASSERT_EQ(signalled(command, "run", "TERM").status, 1);
  expect_refused_untouched(go_on() + "--clip 1", "--clip 0");
  EXPECT_EQ(sluice(go_on()).status, 0);
}

/// With two slots it can: what clips is made again.
TEST_F(ResumeChanges, SpeculativeUpdatesCanBeginToClip) {
  const std::string command = options() + drive() + run("run") + "--clip 0 --update speculative --steps 40 ";
  ASSERT_EQ(signalled(command, "run", "TERM").status, 1);
  const Finished other = sluice(options() + drive() + run("run") + "--clip 0 --update backward --steps 40");
  EXPECT_NE(other.err.find("speculative"), std::string::npos) << other.err;
  const Finished f = sluice(go_on() + "--clip 0.001 --json");
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.out.find("\"repaired\":true"), std::string::npos) << f.out;
}

}  // namespace
}  // namespace sluice
