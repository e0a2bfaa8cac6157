// Checkpoints as their users meet them: saved while a run goes on and when it does not, looked at, and begun from.
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "io/checkpoint/checkpoint.h"
#include "io/checkpoint/manifest.h"
#include "run_command.h"
#include "src/device/profile.h"
#include "tests/exhaustive.h"

namespace sluice {
namespace {

class CheckpointFilesCommand : public RunCommandTest {
 protected:
  std::string room() const { return "--device-memory 32MiB --host-memory 64MiB "; }
  /// As if they had been measured.
  void know_drives(const std::vector<std::string>& directories) const {
    const std::string profile = path("cache/sluice/profile.json");
    auto known = load_profile(profile);
    ASSERT_TRUE(known.ok()) << known.error().message;
    for (const std::string& d : directories) known->drives[drive_key(std::vector{path(d)})] = {};
    ASSERT_TRUE(save_profile(profile, *known).ok());
  }
  std::vector<std::string> steps(const std::string& directory) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(directory)))
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  /// What shows only when data and states are read: then everything is as it was.
  void expect_refused_at_last(const std::string& arguments, const std::string& what) const {
    SCOPED_TRACE(arguments);
    const auto before = everything();
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find(what), std::string::npos) << f.err;
    EXPECT_TRUE(before == everything()) << "something was touched";
  }
  void expect_same_model(const std::string& a, const std::string& b) const {
    EXPECT_EQ(read(path(a + "/model.safetensors")), read(path(b + "/model.safetensors"))) << a << ", " << b;
    EXPECT_FALSE(read(path(a + "/model.safetensors")).empty());
  }
};

TEST_F(CheckpointFilesCommand, AreSavedEveryFewStepsAndKeptAsAsked) {
  const std::string command = options() + room() + "--steps 12 ";
  ASSERT_EQ(sluice(command + run("plain")).status, 0);
  ASSERT_EQ(sluice(command + run("run") + "--save-every 5").status, 0);
  EXPECT_EQ(steps("run/checkpoints"), (std::vector<std::string>{"step-10", "step-5"}));
  expect_same_model("run", "plain");
  ASSERT_EQ(sluice(command + run("kept") + "--save-every 2 --keep 2 --checkpoints " + path("there")).status, 0);
  EXPECT_EQ(steps("there"), (std::vector<std::string>{"step-10", "step-12"}));
  EXPECT_FALSE(std::filesystem::exists(path("kept/checkpoints")));
  expect_refused_untouched(command + run("other") + "--save-every 2 --checkpoints " + path("there"), "of another run");
  expect_refused_untouched(command + "--run none --save-every 2", "nothing of the run is kept");
  expect_refused_untouched(command + run("other") + "--keep 2", "--save-every N");
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

/// Without a drive a crash would start over.
TEST_F(CheckpointFilesCommand, AKilledRunGoesOnFromTheLastOne) {
  const std::string command = options() + room() + "--save-every 7 --keep 1 --steps 120 ";
  const Finished whole = sluice(command + run("whole"));
  ASSERT_EQ(whole.status, 0);
  EXPECT_NE(whole.err.find("a crash would go on from the last checkpoint"), std::string::npos) << whole.err;
  int killed = 0;
  for (int turn = 1; turn <= 3; ++turn) {
    const Finished f = signalled(command + run("run") + (turn > 1 ? "--resume" : ""), "run", "KILL", 20 * turn);
    killed += f.status == 0 ? 0 : 1;
  }
  EXPECT_EQ(killed, 3);
  const Finished last = sluice("train --resume " + run("run"));
  ASSERT_EQ(last.status, 0) << last.err;
  EXPECT_NE(last.err.find("continuing after step "), std::string::npos) << last.err;
  EXPECT_EQ(lines("run"), lines("whole"));
  EXPECT_EQ(result("run"), result("whole"));
}

/// Four ranks save after every step, which stops them, and then beside every other one; whenever they are killed, the
/// last one that was published is whole.
TEST_F(CheckpointFilesCommand, KilledAtAnyMomentLeaveTheLastOneWhole) {
  const std::string command = "train --model llama-tiny --seq 32 --batch 8 --warmup 3 --eval-batches 1 --data " +
                              path("text") + " " + room() + "--ranks 4 --keep 2 --steps 100000 " + run("run");
  const std::string line = "export XDG_CACHE_HOME=" + path("cache") + "; exec " SLUICE_BINARY " " + command;
  std::int64_t last = 0;
  std::mt19937 random(1);
  for (int turn = 0; turn < 12; ++turn) {
    const int every = turn < 6 ? 1 : 2;
    // Some milliseconds behind the moment at which a save begins.
    write("kill.sh", "(" + line + "--save-every " + std::to_string(every) + (turn > 0 ? " --resume" : "") + ") >" +
                         path(".out") + " 2>&1 &\npid=$!\n" + "until grep -q 'saving step " +
                         std::to_string((last / every + 2) * every) + " ' " + path(".out") +
                         " || ! kill -0 $pid; do sleep 0.002; done\nsleep 0.0" + std::to_string(10 + random() % 40) +
                         "\nkill -KILL $pid\nwait $pid\ntrue\n");
    ASSERT_EQ(std::system(("bash " + path("kill.sh") + " 2>/dev/null").c_str()), 0);
    const Finished f = sluice("checkpoint verify --json " + path("run"));
    ASSERT_EQ(f.status, 0) << f.err << read(path(".out"));
    const std::int64_t now = json::parse(f.out)[0]["step"];
    EXPECT_GT(now, last) << read(path(".out"));
    last = now;
    for (const std::string& name : steps("run/checkpoints"))
      if (name.find(".tmp-") == std::string::npos) {
        EXPECT_EQ(sluice("checkpoint verify " + path("run/checkpoints/" + name)).status, 0) << name;
      }
  }
  EXPECT_LE(steps("run/checkpoints").size(), 4u) << "what killed ones have left goes with the next";
}

/// Killed, or failing, at each call that makes a checkpoint of two ranks (four with SLUICE_EXHAUSTIVE=1): one that is
/// written beside steps, one that stops them, and the older one that goes. What is there is whole, and the run goes on
/// to the same end.
TEST_F(CheckpointFilesCommand, EndedAtAnyCallLeaveTheLastOneWhole) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers want to be loaded first";
#endif
  const int ranks = test::is_exhaustive() ? 4 : 2;
  const std::string command = "train --model llama-tiny --seq 32 --batch 4 --warmup 3 --eval-batches 1 --data " +
                              path("text") + " " + room() + "--ranks " + std::to_string(ranks) +
                              " --keep 1 --steps 4 --save-every 2 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  constexpr int io_error = 5, no_space = 28;
  const auto ended_at = [&](int n, const std::string& error, const std::string& calls) {
    std::filesystem::remove_all(path("run"));
    write("fail.sh", "export XDG_CACHE_HOME=" + path("cache") +
                         " LD_PRELOAD=" SLUICE_SYSTEM_CALLS " SLUICE_TEST_FAILING_CALL='" + std::to_string(n) + " " +
                         error + " /checkpoints " + calls + "'\n" SLUICE_BINARY " " + command + run("run") + " >" +
                         path(".out") + " 2>" + path(".err") + "\n");
    return std::system(("bash " + path("fail.sh") + " 2>/dev/null").c_str());
  };
  const auto expect_told = [&](int status) {
    EXPECT_EQ(WEXITSTATUS(status), 1) << read(path(".err"));
    EXPECT_NE(read(path(".err")).find("checkpoints"), std::string::npos) << read(path(".err"));
  };
  int kills = 0, failures = 0;
  for (int n = 1;; ++n) {
    const std::string error = n % 2 == 1 ? "kill" : std::to_string(n % 4 == 0 ? io_error : no_space);
    SCOPED_TRACE(std::to_string(n) + " " + error);
    const int status = ended_at(n, error, "make allocate fsync rename unlink");
    if (status == 0) {
      // Behind the last call, or one whose failure takes nothing (an older checkpoint that stays).
      EXPECT_EQ(sluice("checkpoint verify " + path("run/checkpoints/step-4")).status, 0);
      if (error == "kill") break;
      continue;
    }
    ++(error == "kill" ? kills : failures);
    if (error != "kill") expect_told(status);
    if (std::filesystem::exists(path("run/checkpoints")))
      for (const std::string& name : steps("run/checkpoints"))
        if (name.find(".tmp-") == std::string::npos) {
          EXPECT_EQ(sluice("checkpoint verify " + path("run/checkpoints/" + name)).status, 0) << name;
        }
    const Finished last = sluice(command + run("run"));
    ASSERT_EQ(last.status, 0) << last.err;
    expect_same_model("run", "whole");
    EXPECT_EQ(steps("run/checkpoints"), (std::vector<std::string>{"step-4"}));
  }
  // What the library of the format writes, too.
  int writes = 0;
  for (int status = 1; status != 0; ++writes) {
    SCOPED_TRACE("write " + std::to_string(1 + 9 * writes));
    status = ended_at(1 + 9 * writes, std::to_string(no_space), "write");
    if (status != 0) expect_told(status);
  }
  EXPECT_GT(writes, 5);
  EXPECT_GE(kills, 5 + 5 * ranks);
  EXPECT_GT(failures, 4 + 4 * ranks);
}

/// A run without a drive lives in its checkpoints: wherever they are to be from now on, and whatever it is to be.
TEST_F(CheckpointFilesCommand, AreWhatAKilledRunIsHoweverItGoesOn) {
  const std::string command =
      "train --model llama-tiny --seq 32 --batch 8 --lots 4 --warmup 3 --eval-batches 1 --data " + path("text") + " " +
      room() + "--steps 180 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  const auto stood = [&](const Finished& f) {
    const std::string text = "continuing after step ";
    const std::size_t at = f.err.find(text);
    return at == std::string::npos ? -1 : std::stoi(f.err.substr(at + text.size()));
  };
  ASSERT_NE(signalled(command + run("run") + "--save-every 10", "run", "KILL", 25).status, 0);
  int lines_then = 25;
  for (const std::string& otherwise : {"--checkpoints " + path("elsewhere"), "--durable on --nvme " + path("nvme"),
                                       std::string("--durable off"), std::string("--ranks 2 --save-every 7")}) {
    SCOPED_TRACE(otherwise);
    const int before = static_cast<int>(lines("run").size());
    lines_then += 20;
    const Finished f = signalled("train --resume " + run("run") + otherwise, "run", "KILL", lines_then);
    ASSERT_NE(f.status, 0);
    EXPECT_GE(stood(f), before - 11) << f.err;
  }
  ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
  expect_same_model("run", "whole");
  EXPECT_EQ(lines("run"), lines("whole"));
}

TEST_F(CheckpointFilesCommand, ThatAreGoneAreNotStartedOverFrom) {
  const std::string command = options() + room() + "--steps 60 --save-every 5 --checkpoints " + path("there") + " ";
  ASSERT_NE(signalled(command + run("run"), "run", "KILL", 12).status, 0);
  std::filesystem::rename(path("there"), path("away"));
  const Finished f = sluice("train --resume " + run("run"));
  EXPECT_EQ(f.status, 2);
  EXPECT_NE(f.err.find("is not in " + path("there")), std::string::npos) << f.err;
  std::filesystem::rename(path("away"), path("there"));
  ASSERT_EQ(sluice("train --resume --save-every 0 " + run("run")).status, 0);
  // What is another tool's stays.
  std::filesystem::create_directories(path("theirs/step-5"));
  write("theirs/step-5/model.pt", "theirs");
  expect_refused_untouched(
      options() + room() + "--steps 6 --save-every 5 --checkpoints " + path("theirs") + " " + run("other"),
      "holds model.pt");
}

TEST_F(CheckpointFilesCommand, BeginARunInAnyLayout) {
  const std::string batches = "train --model llama-tiny --seq 32 --batch 8 --warmup 3 --eval-batches 1 --data " +
                              path("text") + " --lots 4 --steps 12 " + room();
  ASSERT_EQ(sluice(batches + run("whole") + "--ranks 2 --save-every 6").status, 0);
  const std::string restore = "train --restore " + path("whole/checkpoints/step-6") + " " + room();
  int made = 0;
  for (const std::string& layout :
       {std::string(), "--ranks 4 --nvme " + path("nvme"), "--pp 2 --ranks 2 --states nvme --nvme " + path("nvme"),
        std::string("--ranks 1 --zero 0")}) {
    SCOPED_TRACE(layout);
    const std::string name = "run" + std::to_string(made++);
    const Finished f = sluice(restore + run(name) + layout);
    ASSERT_EQ(f.status, 0) << f.err;
    expect_same_model(name, "whole");
    const std::vector<json> all = lines("whole");
    EXPECT_EQ(lines(name), std::vector<json>(all.begin() + 6, all.end()));
  }
  // Other cuts and formats have other bits.
  const double loss = json::parse(read(path("whole/result.json")))["eval_loss"];
  for (const std::string& layout :
       {std::string("--tp 2 --ranks 4"), std::string("--cp 2 --ranks 2"), std::string("--dtype fp32"),
        std::string("--moments int8"), std::string("--moments bf16 --micro-batch 2 --lots 1 --ranks 1"),
        std::string("--gradient-dtype bf16")}) {
    SCOPED_TRACE(layout);
    const std::string name = "run" + std::to_string(made++);
    const Finished f = sluice(restore + run(name) + layout);
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_NEAR(result(name)["eval_loss"].get<double>(), loss, 5e-3);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("nvme")));
}

TEST_F(CheckpointFilesCommand, ARunThatWasRestoredGoesOnAndIsKilledAsAnyOther) {
  const std::string command = options() + drive() + "--steps 60 ";
  ASSERT_EQ(sluice(command + run("whole") + "--save-every 10 --keep 0").status, 0);
  const std::string restore = "train --restore " + path("whole/checkpoints/step-10") + " " + drive() + run("run");
  for (int turn = 1; turn <= 2; ++turn)
    static_cast<void>(signalled(turn == 1 ? restore : "train --resume " + run("run"), "run", "KILL", 10 * turn));
  expect_refused_untouched("train --restore " + path("whole/checkpoints/step-20") + " " + drive() + run("run"),
                           "holds a run already");
  ASSERT_EQ(sluice(restore).status, 0) << "the same command goes on";
  expect_same_model("run", "whole");
  std::vector<json> all = lines("whole");
  EXPECT_EQ(lines("run"), std::vector<json>(all.begin() + 10, all.end()));
}

TEST_F(CheckpointFilesCommand, WhatCanNotBeRestoredIsRefused) {
  ASSERT_EQ(sluice(options() + room() + run("whole") + "--steps 6 --save-every 3").status, 0);
  const std::string restore = "train --restore " + path("whole") + " " + room() + run("run");
  for (const auto& [option, why] :
       std::vector<std::pair<std::string, std::string>>{{"--model llama-25m", "is of another model"},
                                                        {"--seq 64", "which tokens a step takes"},
                                                        {"--seed 4", "which tokens a step takes"},
                                                        {"--steps 5", "is of step 6, beyond --steps 5"},
                                                        {"--init " + path("whole"), "leave out --init"},
                                                        {"--from-scratch", "leave out --from-scratch"}})
    expect_refused_untouched(restore + option, why);
  write("other", read(path("text")) + "more");
  expect_refused_at_last(restore + "--steps 8 --data " + path("other"), "is not the data that");
  expect_refused_untouched("train --restore " + path("text") + " " + run("run"), "there is no directory");
  expect_refused_untouched("train --restore " + path("nvme") + " " + run("run"), "holds no checkpoint");
  expect_refused_untouched(options() + run("run") + "--reset-optimizer", "add --restore");
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  // What shows without reading the states is said first, by whatever takes them.
  const std::string step = path("whole/checkpoints/step-6"), sums = "whole/checkpoints/step-6/rank-00000.sums";
  const std::string whole_sums = read(path(sums));
  std::filesystem::remove(path(sums));
  for (const std::string& command :
       {restore + "--steps 8", "plan --steps 8 --restore " + step, "checkpoint reshape " + step + " " + path("a/b"),
        "checkpoint sign --sign " + path("none") + " " + step})
    expect_refused_untouched(command, "rank-00000.sums is missing: the checkpoint is not whole");
  write(sums, whole_sums);
  // What another version says of its run is not taken for the word of none.
  const std::string manifest = read(step + "/manifest.json");
  const auto of_run = [&](const std::string& key, const json& value) {
    auto opened = Checkpoint::open(step);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Manifest m = opened->manifest();
    json said = json::parse(m.run);
    said["description"][key] = value;
    m.run = said.dump();
    write("whole/checkpoints/step-6/manifest.json", manifest_text(m));
  };
  const std::string as_none = restore + "--steps 8 --model llama-tiny --data " + path("text");
  of_run("version", 99);
  expect_refused_untouched(as_none, "what it says of the run that wrote it is of a later version of sluice");
  EXPECT_NE(sluice("checkpoint inspect " + step).out.find("is of a later version"), std::string::npos);
  write("whole/checkpoints/step-6/manifest.json", manifest);
  of_run("config", "none");
  expect_refused_untouched(as_none, "what it says of the run that wrote it is damaged");
  write("whole/checkpoints/step-6/manifest.json", manifest);
  // Whatever is damaged, nothing is left of the run that would have begun.
  const std::string file = "whole/checkpoints/step-6/rank-00000.h5";
  std::string states = read(path(file));
  states[states.size() / 2] ^= 1;
  write(file, states);
  expect_refused_at_last(restore + "--steps 8", "rank-00000.h5: block ");
  const Finished f = sluice("checkpoint verify " + path("whole"));
  EXPECT_EQ(f.status, 2);
  EXPECT_NE(f.err.find("rank-00000.h5: block "), std::string::npos) << f.err;
  EXPECT_EQ(sluice("checkpoint verify " + path("whole/checkpoints/step-3")).status, 0);
  const Finished reset =
      sluice("train --restore " + path("whole/checkpoints/step-3") + " --reset-optimizer " + room() + run("run"));
  EXPECT_EQ(reset.status, 0) << reset.err;
  EXPECT_NE(read(path("run/model.safetensors")), read(path("whole/model.safetensors")));
}

/// LATEST of a directory names what is of its own run.
TEST_F(CheckpointFilesCommand, AreNotMixedWithThoseOfAnotherRun) {
  ASSERT_EQ(sluice(options() + room() + run("run") + "--steps 4 --save-every 2").status, 0);
  ASSERT_EQ(sluice(options() + room() + run("other") + "--steps 6 --save-every 6").status, 0);
  ASSERT_EQ(sluice("checkpoint import " + path("run") + " " + path("imported")).status, 0);
  const std::string there = path("run/checkpoints"), other = path("other/checkpoints");
  expect_refused_untouched("checkpoint import " + path("run") + " " + there, "of another run; give another directory");
  expect_refused_untouched("checkpoint reshape --tp 2 " + other + " " + there, "of another run; give another");
  expect_refused_untouched("checkpoint reshape --tp 2 " + other + " " + path("imported"), "of no run; give another");
  ASSERT_EQ(signalled(options() + drive() + run("stopped") + "--steps 400", "stopped", "TERM").status, 1);
  expect_refused_untouched("checkpoint save " + path("stopped") + " " + there, "of another run; give a directory");
  // What it writes beside its own is no other's.
  std::filesystem::create_directories(path("both"));
  std::filesystem::copy(there + "/step-2", path("both/step-2"));
  EXPECT_EQ(sluice("checkpoint reshape --tp 2 " + there + "/step-4 " + path("both")).status, 0);
  // Of damage that shows late nothing is left, and no directory.
  const std::string file = "run/checkpoints/step-4/rank-00000.h5";
  std::string states = read(path(file));
  states[states.size() / 2] ^= 1;
  write(file, states);
  expect_refused_at_last("checkpoint reshape " + there + " " + path("new/and/newer"), "rank-00000.h5: block ");
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

TEST_F(CheckpointFilesCommand, AreSavedOfARunThatStandsStillAndOfOneThatGoesOn) {
  const std::string command = options() + drive() + "--steps 80 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  std::string saved;
  {
    std::thread other([&] {
      using namespace std::chrono_literals;
      while (read(path("run/metrics.jsonl")).find("\"step\":5,") == std::string::npos) std::this_thread::sleep_for(1ms);
      const std::string line = "export XDG_CACHE_HOME=" + path("cache") + "; " SLUICE_BINARY " checkpoint save " +
                               path("run") + " " + path("on") + " --json >" + path(".saved");
      if (std::system(line.c_str()) == 0) saved = read(path(".saved"));
    });
    const Finished f = sluice(command + run("run"));
    EXPECT_EQ(f.status, 0) << f.err;
    other.join();
  }
  expect_same_model("run", "whole");
  ASSERT_FALSE(saved.empty());
  const std::int64_t step = json::parse(saved)["step"];
  EXPECT_GT(step, 4);
  EXPECT_FALSE(std::filesystem::exists(path("run/save.request")));
  ASSERT_EQ(sluice("train --restore " + path("on") + " " + drive() + run("restored")).status, 0);
  expect_same_model("restored", "whole");

  ASSERT_EQ(signalled(command + run("stopped"), "stopped", "TERM").status, 1);
  const Finished still = sluice("checkpoint save " + path("stopped") + " " + path("still"));
  ASSERT_EQ(still.status, 0) << still.err;
  expect_refused_untouched("checkpoint save " + path("stopped") + " " + path("still"), "is there already");
  expect_refused_untouched("checkpoint save " + path("whole") + " " + path("still"), "the run is complete");
  expect_refused_untouched("checkpoint save " + path("none") + " " + path("still"), "there is no");
  ASSERT_EQ(sluice("train --restore " + path("still") + " " + drive() + run("begun")).status, 0);
  expect_same_model("begun", "whole");
  ASSERT_EQ(sluice("train --resume " + run("stopped")).status, 0) << "it is as it was";
  expect_same_model("stopped", "whole");
  // Of a run that keeps its states in its directory it is a copy.
  ASSERT_EQ(signalled(options() + room() + "--steps 400 " + run("host"), "host", "TERM").status, 1);
  ASSERT_EQ(sluice("checkpoint save " + path("host") + " " + path("copied")).status, 0);
  EXPECT_EQ(sluice("checkpoint verify " + path("copied")).status, 0);
}

/// A file system in a file of this one.
class OtherDrive {
 public:
  OtherDrive(std::string place, const std::string& size, const std::string& mkfs) : place_(std::move(place)) {
    const std::string image = place_ + ".img";
    std::filesystem::create_directory(place_);
    is_there_ = std::system(("(truncate -s " + size + " " + image + " && " + mkfs + " " + image + " && mount -o loop " +
                             image + " " + place_ + ") >/dev/null 2>&1")
                                .c_str()) == 0;
  }
  ~OtherDrive() {
    if (is_there_) static_cast<void>(std::system(("umount " + place_).c_str()));
  }
  OtherDrive(const OtherDrive&) = delete;
  OtherDrive& operator=(const OtherDrive&) = delete;
  bool is_there() const { return is_there_; }

  /// Bytes of a file that others have too.
  static std::uint64_t shared(const std::string& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    constexpr std::uint32_t most = 512;
    std::vector<std::uint64_t> memory((sizeof(fiemap) + most * sizeof(fiemap_extent)) / sizeof(std::uint64_t));
    auto* const map = reinterpret_cast<fiemap*>(memory.data());
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_extent_count = most;
    EXPECT_EQ(ioctl(fd, FS_IOC_FIEMAP, map), 0) << std::strerror(errno);
    ::close(fd);
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < map->fm_mapped_extents; ++i)
      if ((map->fm_extents[i].fe_flags & FIEMAP_EXTENT_SHARED) != 0) bytes += map->fm_extents[i].fe_length;
    return bytes;
  }

 private:
  std::string place_;
  bool is_there_ = false;
};

/// Where the swap file is on the file system of the checkpoint, that costs no bytes; and nothing that steps write later
/// is in it.
TEST_F(CheckpointFilesCommand, ShareTheirBlocksWithTheSwapFile) {
  const OtherDrive xfs(path("xfs"), "600M", "mkfs.xfs -q -m reflink=1");
  if (!xfs.is_there()) GTEST_SKIP() << "no XFS can be made and mounted here (mkfs.xfs, a loop device, root)";
  know_drives({"xfs"});
  const std::string command =
      options() + "--device-memory 8MiB --host-memory 4MiB --states nvme --nvme " + path("xfs") + " --steps 80 ";
  ASSERT_EQ(sluice(command + run("whole")).status, 0);
  ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
  const Finished saved = sluice("checkpoint save " + path("run") + " " + path("xfs/saved") + " --json");
  ASSERT_EQ(saved.status, 0) << saved.err;
  const std::string checkpoint = json::parse(saved.out)["checkpoint"];
  const auto opened = Checkpoint::open(checkpoint);
  ASSERT_TRUE(opened.ok());
  const std::string file = checkpoint + "/" + opened->manifest().files.front().name;
  EXPECT_GT(OtherDrive::shared(file), 9 * opened->manifest().state_bytes() / 10);
  ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
  expect_same_model("run", "whole");
  EXPECT_EQ(sluice("checkpoint verify " + path("xfs/saved")).status, 0) << "steps have written over what it shared";
  ASSERT_EQ(sluice("train --restore " + checkpoint + " --nvme " + path("xfs") + " " + run("restored")).status, 0);
  expect_same_model("restored", "whole");
  // Of a run that keeps its states in its directory it is a copy of the file.
  ASSERT_EQ(signalled(options() + room() + "--steps 400 " + run("xfs/host"), "xfs/host", "TERM").status, 1);
  const Finished copied = sluice("checkpoint save " + path("xfs/host") + " " + path("xfs/copied") + " --json");
  ASSERT_EQ(copied.status, 0) << copied.err;
  EXPECT_GT(OtherDrive::shared(json::parse(copied.out)["checkpoint"].get<std::string>() + "/rank-00000.h5"), 0u);
}

/// What steps save beside their work costs no bytes either, and is what is written where blocks can not be shared.
TEST_F(CheckpointFilesCommand, OfStepsShareTheirBlocksToo) {
  const OtherDrive xfs(path("xfs"), "600M", "mkfs.xfs -q -m reflink=1");
  if (!xfs.is_there()) GTEST_SKIP() << "no XFS can be made and mounted here (mkfs.xfs, a loop device, root)";
  know_drives({"xfs", "nvme"});
  std::filesystem::create_directory(path("nvme"));
  for (const std::string more : {"--moments int8 ", "--ranks 2 --lots 2 "}) {
    SCOPED_TRACE(more);
    const auto command = [&](const std::string& drive, const std::string& name) {
      return options() +
             "--device-memory 16MiB --host-memory 32MiB --states nvme --steps 41 --save-every 10 --keep 9 " + more +
             "--nvme " + path(drive) + " " + run(name);
    };
    for (const bool shares : {true, false}) {
      const std::string drive = shares ? "xfs" : "nvme", name = shares ? "xfs/run" : "run";
      const Finished planned = sluice("plan " + command(drive, name).substr(6) + " --json");
      ASSERT_EQ(planned.status, 0) << planned.err;
      EXPECT_EQ(json::parse(planned.out)["saving_step"]["shares_blocks"], shares);
      const Finished trained = sluice(command(drive, name));
      ASSERT_EQ(trained.status, 0) << trained.err;
      EXPECT_NE(trained.err.find("step 20 to " + path(name) + "/checkpoints while training goes on"),
                std::string::npos);
      EXPECT_EQ(trained.err.find("MiB shared with the swap file") != std::string::npos, shares) << trained.err;
    }
    for (const int step : {10, 20, 30, 40}) {
      const std::string name = "/checkpoints/step-" + std::to_string(step);
      EXPECT_EQ(sluice("checkpoint verify " + path("xfs/run") + name).status, 0);
      EXPECT_EQ(sluice("checkpoint diff " + path("xfs/run") + name + " " + path("run") + name).status, 0);
    }
    std::filesystem::remove_all(path("xfs/run"));
    std::filesystem::remove_all(path("run"));
  }
}

/// A drive that has room for the states, and not for all else or not for all ranks' files: nothing is left, and the
/// checkpoint that is there stays whole.
TEST_F(CheckpointFilesCommand, ADriveThatGetsFullKeepsWhatItHas) {
  const OtherDrive drive(path("drive"), "48M", "mkfs.ext4 -q -m 0 -O ^has_journal");
  if (!drive.is_there()) GTEST_SKIP() << "no ext4 can be made and mounted here (mkfs.ext4, a loop device, root)";
  ASSERT_EQ(sluice(options() + room() + "--ranks 2 --steps 2 --save-every 2 " + run("run")).status, 0);
  const std::string reshape = "checkpoint reshape " + path("run/checkpoints/step-2") + " --dp 2 ";
  ASSERT_EQ(sluice(reshape + path("drive/saved")).status, 0);
  const auto opened = Checkpoint::open(path("drive/saved/step-2"));
  ASSERT_TRUE(opened.ok());
  const std::uint64_t states = opened->manifest().state_bytes();
  const std::string filler = path("drive/filler");
  bool failed = false, saved = false;
  for (const std::int64_t margin : {-4096, 0, 98304, 131072, 163840, 196608, 524288}) {
    SCOPED_TRACE(std::to_string(margin) + " bytes more than its states");
    const std::uint64_t free = std::filesystem::space(path("drive")).available;
    const int fd = ::open(filler.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_EQ(fallocate(fd, 0, 0, static_cast<off_t>(free - states) - margin), 0) << std::strerror(errno);
    ::close(fd);
    const Finished more = sluice(reshape + path("drive/more"));
    EXPECT_EQ(sluice("checkpoint verify " + path("drive/saved")).status, 0);
    std::error_code ignored;
    if (more.status == 0) {
      saved = true;
      EXPECT_EQ(sluice("checkpoint verify " + path("drive/more")).status, 0);
    } else {
      // Status 2: the files could not be reserved; 1: what comes behind the states had no room.
      failed = true;
      EXPECT_TRUE(more.status == 2 || (more.status == 1 && margin >= 0)) << more.err;
      EXPECT_NE(more.err.find(margin < 0 ? "are free there" : "No space left"), std::string::npos) << more.err;
      EXPECT_TRUE(!std::filesystem::exists(path("drive/more")) || std::filesystem::is_empty(path("drive/more")));
    }
    std::filesystem::remove_all(path("drive/more"), ignored);
    std::filesystem::remove(filler);
  }
  EXPECT_TRUE(failed && saved);
}

TEST_F(CheckpointFilesCommand, AreSignedForOtherMachines) {
  if (std::system("openssl version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no openssl to make keys with";
  const auto key = [&](const std::string& name) {
    const std::string pem = path(name + ".pem");
    return std::system(("openssl genpkey -algorithm ed25519 -out " + pem + " && openssl pkey -in " + pem +
                        " -pubout -out " + path(name + ".pub"))
                           .c_str());
  };
  ASSERT_EQ(key("own"), 0);
  ASSERT_EQ(key("other"), 0);
  ASSERT_EQ(sluice(options() + room() + run("run") + "--steps 6 --save-every 3 --ranks 2").status, 0);
  const std::string there = path("run/checkpoints/step-3"), verify = "checkpoint verify " + there;
  const std::string with = " --verify-with " + path("own.pub");
  expect_refused_untouched(verify + with, "is not signed");
  expect_refused_untouched("checkpoint sign " + there + " --sign " + path("own.pub"), "is no private Ed25519 key");
  expect_refused_untouched("checkpoint sign " + there + " --sign " + path("none"), "No such file");
  const Finished made = sluice("checkpoint sign " + there + " --sign " + path("own.pem"));
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(sluice(verify + with).status, 0);
  expect_refused_untouched(verify + " --verify-with " + path("other.pub"), "is not a signature by the owner of");
  // Whoever changes a file can make its checksums right, and not this.
  std::string master = read(there + "/model.h5");
  master[master.size() / 2] ^= 1;
  write("run/checkpoints/step-3/model.h5", master);
  EXPECT_EQ(sluice(verify).status, 0) << "views are to look at";
  const Finished changed = sluice(verify + with);
  EXPECT_EQ(changed.status, 2);
  EXPECT_NE(changed.err.find("model.h5 is not the file that was signed"), std::string::npos) << changed.err;
  const std::string restore = "train --restore " + there + " " + room() + run("begun") + "--verify-with ";
  expect_refused_untouched(restore + path("own.pub"), "model.h5 is not the file that was signed");
  master[master.size() / 2] ^= 1;
  write("run/checkpoints/step-3/model.h5", master);
  EXPECT_EQ(sluice(restore + path("own.pub")).status, 0);
  expect_refused_untouched(options() + run("x") + "--verify-with " + path("own.pub"), "--restore");
}

TEST_F(CheckpointFilesCommand, AreListedInspectedAndPruned) {
  ASSERT_EQ(sluice(options() + room() + run("run") + "--steps 9 --save-every 3 --ranks 2").status, 0);
  const json listed = json::parse(sluice("checkpoint list --json " + path("run")).out);
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[2]["step"], 9);
  EXPECT_EQ(listed[2]["latest"], true);
  EXPECT_GT(listed[0]["bytes"].get<std::uint64_t>(), 1u << 20);
  const json seen = json::parse(sluice("checkpoint inspect --json " + path("run/checkpoints/step-3")).out);
  EXPECT_EQ(seen["step"], 3);
  EXPECT_EQ(seen["files"].size(), 2u);
  EXPECT_EQ(seen["tensors"].size(), 39u);
  EXPECT_EQ(seen["run"]["config"]["ranks"], 2);
  const Finished text = sluice("checkpoint inspect --tensors " + path("run/checkpoints"));
  EXPECT_NE(text.out.find("tensor   model.embed_tokens.weight [256, 128]"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("run      2 ranks: pp 1 x dp 2 x cp 1 x tp 1"), std::string::npos) << text.out;
  EXPECT_EQ(sluice("checkpoint prune --keep 2 " + path("run")).status, 0);
  EXPECT_EQ(steps("run/checkpoints"), (std::vector<std::string>{"step-6", "step-9"}));
  expect_refused_untouched("checkpoint prune --keep 0 " + path("run"), "--keep");
  for (const char* command : {"list ", "prune --keep 1 ", "verify "})
    expect_refused_untouched("checkpoint " + std::string(command) + path("none"), "there is no " + path("none"));
  std::filesystem::rename(path("run/checkpoints/step-6"), path("run/checkpoints/step-7"));
  expect_refused_untouched("checkpoint verify " + path("run/checkpoints/step-7"), "is the manifest of step 6");
}

TEST_F(CheckpointFilesCommand, OfARunAreWhereItPutsThem) {
  ASSERT_EQ(
      sluice(options() + room() + run("run") + "--steps 2 --save-every 2 --checkpoints " + path("elsewhere")).status,
      0);
  EXPECT_EQ(json::parse(sluice("checkpoint list --json " + path("run")).out).size(), 1u);
  EXPECT_EQ(sluice("checkpoint verify " + path("run")).status, 0);
  EXPECT_EQ(sluice("checkpoint diff " + path("run") + " " + path("elsewhere")).status, 0);
  EXPECT_EQ(sluice("checkpoint reshape " + path("run") + " " + path("reshaped")).status, 0);
  EXPECT_EQ(sluice("checkpoint diff " + path("run") + " " + path("reshaped")).status, 0);
  EXPECT_EQ(sluice("train --restore " + path("run") + " --steps 3 " + room() + run("further")).status, 0);
  for (const std::string& command : {"checkpoint list " + path("further"), "checkpoint verify " + path("further"),
                                     "checkpoint diff " + path("run") + " " + path("further"),
                                     "train --restore " + path("further") + " " + run("not")})
    expect_refused_untouched(command, path("further") + " has no checkpoints: 'train --save-every N' makes them");
}

}  // namespace
}  // namespace sluice
