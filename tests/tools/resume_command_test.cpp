// sluice train --run: what goes on, after which signal, and what is refused with nothing touched.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "run_command.h"

namespace sluice {
namespace {

using nlohmann::json;

using ResumeCommand = RunCommandTest;

TEST_F(ResumeCommand, AfterSigtermAndCtrlCTheSameCommandGoesOn) {
  for (const std::string& where : {drive(), drive() + "--durable off ", std::string("--states host ")}) {
    SCOPED_TRACE(where);
    const std::string command = options() + where + "--steps 40 ";
    ASSERT_EQ(sluice(command + run("whole")).status, 0);
    const Finished first = signalled(command + run("run"), "run", "TERM");
    EXPECT_EQ(first.status, 1) << first.err;
    EXPECT_NE(first.err.find("stopped by a signal after step"), std::string::npos) << first.err;
    const std::size_t done = lines("run").size();
    EXPECT_LT(done, 40u);
    const Finished second = signalled(command + run("run"), "run", "INT", static_cast<int>(done) + 2);
    EXPECT_EQ(second.status, 1) << second.err;
    const Finished third = sluice("train --resume " + run("run"));
    ASSERT_EQ(third.status, 0) << third.err;
    EXPECT_NE(third.err.find("continuing after step"), std::string::npos) << third.err;
    EXPECT_EQ(lines("run"), lines("whole"));
    EXPECT_EQ(result("run"), result("whole"));
    EXPECT_EQ(read(path("run/model.safetensors")), read(path("whole/model.safetensors")));
    EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
    EXPECT_FALSE(std::filesystem::exists(path("run/commit.0")) || std::filesystem::exists(path("run/state.snapshot")));
    const Finished again = sluice(command + run("run") + "--json");
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(json::parse(again.out)["steps"], 40);
    std::filesystem::remove_all(path("run"));
    std::filesystem::remove_all(path("whole"));
  }
}

TEST_F(ResumeCommand, SaysWhatACrashWouldCost) {
  const auto said = [&](const std::string& arguments) { return sluice(options() + "--steps 1 " + arguments).err; };
  EXPECT_NE(said(drive() + run("a")).find("durable: every step survives a crash"), std::string::npos);
  EXPECT_NE(said(drive() + run("b") + "--durable off").find("a crash would start over"), std::string::npos);
  EXPECT_NE(said(run("c")).find("there is no --nvme DIR"), std::string::npos);
  EXPECT_NE(said(drive()).find("there is no --run DIR"), std::string::npos);
  EXPECT_NE(said(drive() + run("d") + "--nvme-space 16MiB").find("give that as --nvme-space"), std::string::npos);
  const Finished plan = sluice("plan --model llama-tiny --seq 32 --batch 4 " + drive() + run("e") + "--json");
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_EQ(json::parse(plan.out)["durable"]["on"], true);
  EXPECT_GT(json::parse(plan.out)["durable"]["second_slots_bytes"], 8u << 20);
  EXPECT_FALSE(std::filesystem::exists(path("e")));
}

TEST_F(ResumeCommand, RefusesOptionsThatContradictTheRun) {
  stop_a_run();
  for (const char* option :
       {"--lr 1e-3", "--steps 50", "--seed 2", "--seq 64", "--batch 8", "--dtype fp32", "--clip 2", "--model llama-25m",
        "--moments int8", "--device-memory 16MiB", "--durable off", "--update backward", "--optimizer device",
        "--group 1", "--beta2 0.99", "--weight-decay 0", "--ranks 2"})
    expect_refused_untouched("train " + run("run") + option, "contradicts the run");
  expect_refused_untouched("train " + run("run") + "--data " + path("nvme"), "contradicts the run");
  const Finished f = sluice("train --resume --eval-every 7 --hash 3 --optimizer-threads 1 " + run("run"));
  EXPECT_EQ(f.status, 0) << "what changes no bit may change: " << f.err;
}

TEST_F(ResumeCommand, ARunOfConstantRateMayGrow) {
  const std::string command = options() + drive() + run("run") + "--lr-schedule constant ";
  ASSERT_EQ(signalled(command + "--steps 30", "run", "TERM").status, 1);
  const std::size_t done = lines("run").size();
  ASSERT_EQ(signalled(command + "--steps 60", "run", "TERM", static_cast<int>(done) + 2).status, 1);
  const Finished last = sluice("train --resume " + run("run"));
  ASSERT_EQ(last.status, 0) << last.err;
  EXPECT_EQ(lines("run").size(), 60u) << "it stays grown";
  ASSERT_EQ(sluice(options() + drive() + run("whole") + "--lr-schedule constant --steps 60").status, 0);
  EXPECT_EQ(lines("run"), lines("whole"));
  expect_refused_untouched(command + "--steps 90", "is complete after 60");
}

TEST_F(ResumeCommand, ADamagedResultDestroysNothing) {
  stop_a_run();
  for (const char* text : {"{}", "[]", "{\"run\":\"0123456789abcdef\",\"steps\":40,\"eval_loss\":1}", "{"}) {
    write("run/result.json", text);
    expect_refused_untouched("train --resume --json " + run("run"), "result.json");
    expect_refused_untouched("train --resume " + run("run"), "result.json");
  }
  std::filesystem::remove(path("run/result.json"));
  EXPECT_EQ(sluice("train --resume " + run("run")).status, 0);
}

// A directory may be called as a preset is, for one the run's own.
TEST_F(ResumeCommand, APresetStaysOneBesideAFolderOfItsName) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const std::string command = options() + drive() + "--steps 2 --run llama-tiny";
  const Finished first = sluice(command), again = sluice(command);
  std::filesystem::current_path(before);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(again.status, 0) << again.err;
}

TEST_F(ResumeCommand, WhatWasLeftOpenMayBeLeftOpenAgain) {
  const std::string open = "--threads 0 --nvme-space 0 --durable auto --schedule vertical --steps 40 ";
  ASSERT_EQ(signalled(options() + drive() + run("run") + open, "run", "TERM").status, 1);
  const Finished f = sluice("train --resume --schedule vertical --threads 0 " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
}

TEST_F(ResumeCommand, AMovedRunTakesItsMetricsAlong) {
  stop_a_run();
  std::filesystem::rename(path("run"), path("moved"));
  const Finished f = sluice("train --resume " + run("moved"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(lines("moved").size(), 40u);
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(ResumeCommand, ATornTailOfMetricsIsWrittenAnew) {
  ASSERT_EQ(sluice(options() + drive() + run("whole") + "--steps 40").status, 0);
  stop_a_run();
  const std::string metrics = path("run/metrics.jsonl");
  std::string text = read(metrics);
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(text.find('\n') + 20), text.end(), '\0');
  std::ofstream(metrics) << text;
  const Finished f = sluice("train --resume " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(lines("run"), lines("whole"));
}

TEST_F(ResumeCommand, RanksThatCommittedApartGoBackTogether) {
  for (const int seed : {1, 2, 3, 4}) {
    const std::string name = "ranks" + std::to_string(seed);
    const Finished f = sluice(options() + drive() + run(name) + "--ranks 2 --steps 10 --poison-steps 3,4,5,6,7 " +
                              "--max-skipped 20 --delay-seed " + std::to_string(seed));
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(lines(name), lines("ranks1"));
    EXPECT_EQ(result(name), result("ranks1"));
  }
}

TEST_F(ResumeCommand, RefusesRunsThatAreNotWhole) {
  stop_a_run();
  const std::string go_on = "train --resume " + run("run");
  const auto with = [&](const std::string& file, const std::function<void(const std::string&)>& change,
                        const std::string& what) {
    const std::string at = file == "swap" ? swap() : path("run/" + file), saved = path("saved");
    std::filesystem::copy_file(at, saved, std::filesystem::copy_options::overwrite_existing);
    change(at);
    expect_refused_untouched(go_on, what);
    std::filesystem::copy_file(saved, at, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(saved);
  };
  const auto remove = [](const std::string& at) { std::filesystem::remove(at); };
  const auto halve = [](const std::string& at) {
    std::filesystem::resize_file(at, std::filesystem::file_size(at) / 2);
  };
  const auto replace = [&](const std::string& from, const std::string& to) {
    return [from, to](const std::string& at) {
      std::string text = read(at);
      ASSERT_NE(text.find(from), std::string::npos);
      text.replace(text.find(from), from.size(), to);
      std::ofstream(at) << text;
    };
  };
  with("run.json", remove, "half a run");
  with("run.json", halve, "run.json");
  with("run.json", replace("\"version\": 1", "\"version\": 99"), "another version");
  with("run.json", replace("\"seed\": 1", "\"seed\": 2"), "is damaged");
  with("commit.0", halve, "cut off");
  with("commit.0", remove, "half a run");
  with("swap", remove, "can not open swap file");
  with("swap", halve, "belongs to another plan or is damaged");
  with("metrics.jsonl", replace("{\"step\":1,", "{\"x\":1,"), "not of a metrics file");
  std::filesystem::copy_file(path("text"), path("saved"));
  std::string text = read(path("text"));
  text[7000] = '#';
  write("text", text);
  expect_refused_untouched(go_on, "is not the data that the run began with");
  std::filesystem::copy_file(path("saved"), path("text"), std::filesystem::copy_options::overwrite_existing);
  const Finished f = sluice(go_on);
  EXPECT_EQ(f.status, 0) << f.err;
}

TEST_F(ResumeCommand, DamagedTokensOfATextAreMadeAgainAndAUsersTokensAreNamed) {
  const auto flip = [](const std::string& at) {
    std::string bytes = read(at);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(at, std::ios::binary) << bytes;
  };
  stop_a_run();
  ASSERT_EQ(sluice("data tokenize --input " + path("text") + " --output " + path("text.tokens")).status, 0);
  const std::string tokens = std::filesystem::directory_iterator(path("run/tokens"))->path(), good = read(tokens);
  flip(tokens);
  const Finished f = sluice("train --resume " + run("run"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find(tokens + " is damaged"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("it is made again from " + path("text")), std::string::npos) << f.err;
  EXPECT_TRUE(read(tokens) == good);
  ASSERT_EQ(sluice(options() + drive() + run("whole") + "--steps 40").status, 0);
  EXPECT_EQ(lines("run"), lines("whole"));

  const std::string given = "train --model llama-tiny --seq 32 --batch 4 --data " + path("text.tokens") + " ";
  ASSERT_EQ(signalled(given + drive() + run("given") + "--steps 40", "given", "TERM").status, 1);
  flip(path("text.tokens"));
  expect_refused_untouched("train --resume " + run("given"), path("text.tokens") + " is damaged");
}

TEST_F(ResumeCommand, RefusesAForeignSwapFileNamingTheBlock) {
  stop_a_run();
  std::string noise(std::filesystem::file_size(swap()), 'x');
  std::ofstream(swap()) << noise;
  const Finished f = sluice("train --resume " + run("run"));
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_NE(f.err.find("block 0"), std::string::npos) << f.err;
}

TEST_F(ResumeCommand, RefusesWhatIsInUse) {
  const std::string script = "XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " + options() + drive() +
                             run("run") + "--steps 1000000 >/dev/null 2>&1 & echo $! >" + path(".pid") +
                             "; until [ -s " + path("run") +
                             "/metrics.jsonl ]; do kill -0 $! || exit 1; sleep 0.02; done";
  ASSERT_EQ(std::system(script.c_str()), 0);
  for (const std::string& command : {"train --resume " + run("run"), options() + run("run") + "--steps 5"}) {
    const Finished f = sluice(command);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find("in use by another process"), std::string::npos) << f.err;
  }
  std::filesystem::copy(path("run"), path("copy"), std::filesystem::copy_options::recursive);
  const Finished f = sluice("train --resume " + run("copy"));
  EXPECT_EQ(f.status, 2) << "its swap file is in use: " << f.err;
  EXPECT_NE(f.err.find("used by another run"), std::string::npos) << f.err;
  EXPECT_EQ(std::system(("kill -9 $(cat " + path(".pid") + ")").c_str()), 0);
}

TEST_F(ResumeCommand, RefusesToGoOnWithNothing) {
  expect_refused("train --resume", "--run DIR");
  expect_refused("train --resume " + run("none"), "holds no run");
  EXPECT_FALSE(std::filesystem::exists(path("none")));
  expect_refused("train " + run("none"), "--model is missing");
  expect_refused("train --model llama-tiny " + run("none"), "--data is missing");
  expect_refused(options() + "--durable on --nvme " + path("nvme"), "--durable on needs a directory");
  expect_refused(options() + "--durable on " + run("none"), "--durable on needs a drive");
  expect_refused(options() + "--durable perhaps", "perhaps");
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

TEST_F(ResumeCommand, SkippedStepsAreTold) {
  const std::string command = options() + drive() + run("run") + "--steps 8 --poison-steps 3 ";
  const Finished f = sluice(command);
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_NE(f.err.find("nothing of this step is kept"), std::string::npos) << f.err;
  const std::vector<json> all = lines("run");
  ASSERT_EQ(all.size(), 8u);
  EXPECT_TRUE(all[2]["loss"].is_null());
  const Finished stopped = sluice(options() + drive() + run("off") + "--steps 8 --poison-steps 3 --durable off");
  EXPECT_EQ(stopped.status, 1) << stopped.err;
  EXPECT_NE(stopped.err.find("not finite"), std::string::npos) << stopped.err;
}

}  // namespace
}  // namespace sluice
