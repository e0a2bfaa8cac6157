// sluice train --run: what goes on, after which signal, and what is refused with nothing touched.
#include <sys/mount.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/checksum.h"
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
    EXPECT_FALSE(std::filesystem::exists(path("run/commit.0")) || std::filesystem::exists(path("run/saved")));
    const Finished again = sluice(command + run("run") + "--json");
    EXPECT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(json::parse(again.out)["steps"], 40);
    std::filesystem::remove_all(path("run"));
    std::filesystem::remove_all(path("whole"));
  }
}

TEST_F(ResumeCommand, AClosedTerminalStopsARunUnlessNohupIsAskedFor) {
  const std::string command = options() + "--states host --steps 40 ";
  const Finished closed = signalled(command + run("run"), "run", "HUP $pid; kill -HUP");
  EXPECT_EQ(closed.status, 1) << closed.err;
  EXPECT_NE(closed.err.find("stopped by a signal after step"), std::string::npos) << closed.err;
  EXPECT_EQ(sluice("train --resume " + run("run")).status, 0);
  const Finished kept = signalled(command + run("kept"), "kept", "HUP", 3, "nohup ");
  EXPECT_EQ(kept.status, 0) << kept.err;
  EXPECT_EQ(result("kept"), result("run"));
}

TEST_F(ResumeCommand, SaysWhatACrashWouldCost) {
  const auto said = [&](const std::string& arguments) { return sluice(options() + "--steps 1 " + arguments).err; };
  EXPECT_NE(said(drive() + run("a")).find("durable: every step survives a crash"), std::string::npos);
  EXPECT_NE(said(drive() + run("b") + "--durable off").find("a crash would start over"), std::string::npos);
  EXPECT_NE(said(run("c")).find("there is no --nvme DIR"), std::string::npos);
  EXPECT_NE(said(drive() + "--run none").find("nothing of a run is kept"), std::string::npos);
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
        "--moments int8", "--gradient-dtype bf16", "--activation-dtype fp8", "--device-memory 16MiB", "--durable off",
        "--update backward", "--optimizer device", "--group 1", "--beta2 0.99", "--weight-decay 0", "--ranks 2"})
    expect_refused_untouched("train " + run("run") + option, "contradicts the run");
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
  const std::string open = "--threads 0 --durable auto --schedule vertical --steps 40 ";
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

// Both would write to one swap file: what the one has committed, the other would overwrite.
TEST_F(ResumeCommand, ACopyBesideItsOriginalIsRefused) {
  ASSERT_EQ(sluice(options() + drive() + run("whole") + "--steps 40").status, 0);
  stop_a_run();
  copy("run", "copy");
  expect_refused_untouched("train --resume " + run("copy"), "go on in " + real("run") + ", or remove");
  expect_refused_untouched("train --resume --json " + run("copy"), "both would write to one swap file");
  EXPECT_EQ(sluice("checkpoint inspect " + path("copy")).status, 0);
  EXPECT_EQ(sluice("checkpoint export " + path("copy") + " " + path("model")).status, 0);
  // A link to the directory is the directory.
  std::filesystem::create_directory_symlink(path("run"), path("link"));
  const Finished f = sluice("train --resume " + run("link"));
  ASSERT_EQ(f.status, 0) << f.err;
  EXPECT_EQ(result("run"), result("whole"));
}

TEST_F(ResumeCommand, TheOriginalIsKnownByItsDirectoryWhateverItsName) {
  stop_a_run();
  std::filesystem::rename(path("run"), path("renamed"));
  copy("renamed", "run");
  expect_refused_untouched("train --resume " + run("run"), "go on in " + real("renamed"));
  expect_refused_untouched("train --resume " + run("renamed"), "go on in " + real("run"));
  std::filesystem::remove_all(path("run"));
  const Finished f = sluice("train --resume " + run("renamed"));
  EXPECT_EQ(f.status, 0) << f.err;
}

TEST_F(ResumeCommand, ACopyOfWhatIsGoneGoesOn) {
  stop_a_run();
  copy("run", "backup");
  copy("run", "put-back");
  std::filesystem::remove_all(path("run"));
  std::filesystem::rename(path("put-back"), path("run"));
  // Put back from a backup, beside which it lies: that one has not been where the run was.
  const std::size_t done = lines("run").size();
  const Finished first = signalled("train --resume " + run("run"), "run", "TERM", static_cast<int>(done) + 2);
  EXPECT_EQ(first.status, 1) << first.err;
  EXPECT_NE(first.err.find("was replaced, by a copy from elsewhere"), std::string::npos) << first.err;
  expect_refused_untouched("train --resume " + run("backup"), "go on in " + real("run"));
  std::filesystem::rename(path("run"), path("moved"));
  const std::size_t later = lines("moved").size();
  const Finished moved = signalled("train --resume " + run("moved"), "moved", "TERM", static_cast<int>(later) + 2);
  EXPECT_EQ(moved.status, 1) << moved.err;
  EXPECT_NE(moved.err.find("the run was in " + real("") + "run before"), std::string::npos) << moved.err;
  const Finished last = sluice("train --resume " + run("moved"));
  EXPECT_EQ(last.status, 0) << last.err;
  EXPECT_EQ(last.err.find("before, which is gone"), std::string::npos) << "it is remembered: " << last.err;
}

TEST_F(ResumeCommand, RunsFromBeforePlacesWereRememberedGoOn) {
  stop_a_run();
  nlohmann::ordered_json run_json = nlohmann::ordered_json::parse(read(path("run/run.json")));
  ASSERT_TRUE(run_json.contains("place"));
  run_json.erase("place");
  run_json.erase("seal");
  const std::string sealed = run_json.dump();
  char seal[32];
  std::snprintf(seal, sizeof seal, "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(sealed)))));
  run_json["seal"] = seal;
  write("run/run.json", run_json.dump(1) + "\n");
  const std::size_t done = lines("run").size();
  ASSERT_EQ(signalled("train --resume " + run("run"), "run", "TERM", static_cast<int>(done) + 2).status, 1);
  EXPECT_EQ(nlohmann::ordered_json::parse(read(path("run/run.json")))["place"]["path"], real("run"));
  EXPECT_EQ(sluice("train --resume " + run("run")).status, 0);
}

// Its states lie in the directory, and so copies of it share nothing.
TEST_F(ResumeCommand, CopiesOfARunThatIsNotDurableGoOnApart) {
  const std::string command = options() + drive() + "--durable off --steps 40 ";
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  copy("run", "copy");
  for (const char* name : {"copy", "run"}) {
    const Finished f = sluice("train --resume " + run(name));
    EXPECT_EQ(f.status, 0) << f.err;
  }
  EXPECT_EQ(result("run"), result("copy"));
}

TEST_F(ResumeCommand, ASwapFileThatHasGoneOnIsNotTheDrivesFault) {
  stop_a_run();
  copy("run", "copy");
  const std::size_t done = lines("run").size();
  ASSERT_EQ(signalled("train --resume " + run("run"), "run", "TERM", static_cast<int>(done) + 4).status, 1);
  std::filesystem::remove_all(path("run"));
  const std::string after = std::to_string(lines("copy").back()["step"].get<int>());
  for (const std::string& command : {"train --resume " + run("copy"), "checkpoint inspect " + path("copy")}) {
    const Finished f = sluice(command);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find("it has gone on with a copy of this directory"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find("states of step " + after), std::string::npos) << f.err;
    EXPECT_EQ(f.err.find("check the drive"), std::string::npos) << f.err;
  }
}

TEST_F(ResumeCommand, WhatIsNotOfTheStatesTakesNoStepAlong) {
  for (const std::string& where : {drive(), std::string("--states host "), drive() + "--durable off "}) {
    SCOPED_TRACE(where);
    const std::string command = options() + where + "--steps 8 --eval-every 2 ";
    ASSERT_EQ(sluice(command + run("whole")).status, 0);
    std::filesystem::create_directory(path("full"));
    std::filesystem::create_symlink("/dev/full", path("full/metrics.jsonl"));
    const Finished full = sluice(command + run("run") + "--metrics " + path("full/metrics.jsonl"));
    EXPECT_EQ(full.status, 1) << full.err;
    EXPECT_NE(full.err.find("a line could not be written: No space left on device"), std::string::npos) << full.err;
    EXPECT_NE(full.err.find("go on with: sluice train --run " + path("run") + " --resume"), std::string::npos);
    std::filesystem::remove(path("full/metrics.jsonl"));
    // All steps are done then, and the model can not have its name.
    std::filesystem::create_directories(path("run/model.safetensors/in the way"));
    const Finished model = sluice("train --resume " + run("run"));
    EXPECT_EQ(model.status, 1) << model.err;
    EXPECT_NE(model.err.find("continuing after step"), std::string::npos) << model.err;
    EXPECT_NE(model.err.find("the states of step 8 are kept"), std::string::npos) << model.err;
    std::filesystem::remove_all(path("run/model.safetensors"));
    const Finished f = sluice("train --resume " + run("run"));
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_NE(f.err.find("continuing after step 8"), std::string::npos) << f.err;
    EXPECT_EQ(lines("full"), lines("whole"));
    EXPECT_EQ(result("run"), result("whole"));
    EXPECT_EQ(read(path("run/model.safetensors")), read(path("whole/model.safetensors")));
    for (const char* name : {"run", "whole", "full"}) std::filesystem::remove_all(path(name));
  }
}

TEST_F(ResumeCommand, ATraceThatCanNotBeWrittenSpoilsNothing) {
  const Finished f = sluice(options() + "--states host --steps 3 --trace /dev/full " + run("run"));
  EXPECT_EQ(f.status, 1) << f.err;
  EXPECT_NE(f.err.find("the run itself is complete"), std::string::npos) << f.err;
  EXPECT_EQ(sluice("train --resume " + run("run")).status, 0);
}

TEST_F(ResumeCommand, TheRoomForWhatARunLeavesIsAskedForBeforeItsFirstStep) {
  const std::string small = path("small");
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "no file system can be mounted here";
  const Finished states = sluice(options() + "--states host --run " + small + "/run");
  const Finished model = sluice(options() + drive() + "--run " + small + "/run");
  const bool left = std::filesystem::exists(small + "/run/run.json");
  EXPECT_EQ(umount(small.c_str()), 0);
  for (const Finished& f : {states, model}) {
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find(" are free there; make room"), std::string::npos) << f.err;
    EXPECT_EQ(f.err.find("step 1/"), std::string::npos) << f.err;
  }
  EXPECT_NE(states.err.find("states of a run that is stopped"), std::string::npos) << states.err;
  EXPECT_NE(model.err.find("the model at the end of the run"), std::string::npos) << model.err;
  EXPECT_FALSE(left);
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
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

TEST_F(ResumeCommand, DamagedLinesOfMetricsAreNamedAndWrittenAnew) {
  for (const std::string& where : {drive(), drive() + "--durable off "}) {
    SCOPED_TRACE(where);
    const std::string command = options() + where + "--steps 40 ";
    ASSERT_EQ(sluice(command + run("whole")).status, 0);
    ASSERT_EQ(signalled(command + run("run"), "run", "TERM", 4).status, 1);
    std::string text = read(path("run/metrics.jsonl"));
    text[text.find('\n') + 15] = '\n';
    write("run/metrics.jsonl", text);
    const Finished f = sluice("train --resume " + run("run"));
    EXPECT_EQ(f.status, 0) << f.err;
    for (const char* number : {"2", "3"})
      EXPECT_NE(f.err.find("run/metrics.jsonl: line " + std::string(number) + " is not of a step"), std::string::npos)
          << f.err;
    EXPECT_EQ(lines("run"), lines("whole"));
    for (const char* name : {"run", "whole"}) std::filesystem::remove_all(path(name));
  }
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
  with("run.json", replace("\"version\": 2", "\"version\": 99"), "is of a later version");
  with("run.json", replace("\"seed\": 1", "\"seed\": 2"), "is damaged");
  with("commit.0", halve, "cut off");
  with("commit.0", remove, "half a run");
  with("swap", remove, "which is not in " + path("nvme"));
  with("swap", halve, "belongs to another plan or is damaged");
  with(
      "metrics.jsonl", [](const std::string& at) { std::ofstream(at) << "dear diary\n"; }, "not of a metrics file");
  std::filesystem::copy_file(path("text"), path("saved"));
  std::string text = read(path("text"));
  text[7000] = '#';
  write("text", text);
  expect_refused_untouched(go_on, "is not the data that the run began with");
  std::filesystem::copy_file(path("saved"), path("text"), std::filesystem::copy_options::overwrite_existing);
  const Finished f = sluice(go_on);
  EXPECT_EQ(f.status, 0) << f.err;
}

// Its sums have another order: what it has learned need not be lost.
TEST_F(ResumeCommand, ARunOfAnEarlyVersionIsExportedAndDoesNotGoOn) {
  stop_a_run();
  auto description = nlohmann::ordered_json::parse(read(path("run/run.json")));
  description["version"] = 1;
  description["config"].erase("lots");
  description.erase("seal");
  const std::string text = description.dump();
  char seal[20];
  std::snprintf(seal, sizeof seal, "%016llx",
                static_cast<unsigned long long>(checksum(std::as_bytes(std::span(text)))));
  description["seal"] = seal;
  write("run/run.json", description.dump(1) + "\n");
  for (const char* more : {"", "--ranks 2", "--ranks 3"})
    expect_refused_untouched("train --resume " + run("run") + more, "was begun by an early version of sluice");
  const Finished f = sluice("checkpoint export " + path("run") + " " + path("out"));
  EXPECT_EQ(f.status, 0) << f.err;
  EXPECT_TRUE(std::filesystem::exists(path("out/model.safetensors")));
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
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_NE(f.err.find("both would write to one swap file"), std::string::npos) << f.err;
  std::filesystem::rename(path("run"), path("elsewhere"));
  std::filesystem::remove(path("elsewhere/run.json"));
  const Finished other = sluice("train --resume " + run("copy"));
  EXPECT_EQ(other.status, 2) << "its swap file is in use: " << other.err;
  EXPECT_NE(other.err.find("used by another run"), std::string::npos) << other.err;
  EXPECT_EQ(std::system(("kill -9 $(cat " + path(".pid") + ")").c_str()), 0);
}

TEST_F(ResumeCommand, RefusesToGoOnWithNothing) {
  expect_refused("train --resume", "--run DIR");
  expect_refused("train --resume " + run("none"), "holds no run");
  EXPECT_FALSE(std::filesystem::exists(path("none")));
  expect_refused("train " + run("none"), "--model is missing");
  expect_refused("train --model llama-tiny " + run("none"), "--data is missing");
  expect_refused(options() + "--run none --durable on --nvme " + path("nvme"), "--durable on needs a directory");
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
