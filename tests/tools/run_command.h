// Runs that are stopped, and everything that they leave.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"

namespace sluice {

class RunCommandTest : public CommandTest {
 protected:
  void SetUp() override { set_up_training(); }

  std::string options() const {
    return "train --model llama-tiny --seq 32 --batch 4 --warmup 3 --eval-batches 1 --data " + path("text") + " ";
  }
  std::string drive() const {
    return "--device-memory 8MiB --host-memory 4MiB --states nvme --nvme " + path("nvme") + " ";
  }
  std::string run(const std::string& name) const { return "--run " + path(name) + " "; }

  /// Starts the command, with `launcher` in front of it, and signals it when the run's metrics have a few lines. The
  /// steps of these runs take milliseconds, so that the lines are counted here and not by a shell's loop, which a busy
  /// machine holds up until the run is over.
  Finished signalled(const std::string& arguments, const std::string& name, const std::string& signal,
                     int lines_min = 3, const std::string& launcher = "") const {
    using namespace std::chrono_literals;
    const std::string command = launcher + SLUICE_BINARY " " + arguments + " >" + path(".out") + " 2>" + path(".err");
    std::filesystem::remove(path(".pid"));
    std::future<int> ended = std::async(std::launch::async, [script = "export XDG_CACHE_HOME=" + path("cache") + "; " +
                                                                      command + " & pid=$!; echo $pid >" +
                                                                      path(".pid") + "; wait $pid"] {
      return std::system(script.c_str());
    });
    for (; ended.wait_for(1ms) != std::future_status::ready;) {
      const std::string metrics = read(path(name) + "/metrics.jsonl");
      if (std::count(metrics.begin(), metrics.end(), '\n') < lines_min) continue;
      EXPECT_EQ(std::system(("pid=$(cat " + path(".pid") + "); kill -" + signal + " $pid").c_str()), 0)
          << "the run was over before its signal";
      break;
    }
    const int status = ended.get();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
  }

  using json = nlohmann::json;

  std::vector<json> lines(const std::string& name) const {
    std::vector<json> result;
    std::stringstream text(read(path(name) + "/metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      const json j = json::parse(line);
      json kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "eval_loss"})
        if (j.contains(key)) kept[key] = j[key];
      result.push_back(kept);
    }
    return result;
  }

  json result(const std::string& name) const {
    json j = json::parse(read(path(name) + "/result.json"));
    j.erase("run");  // the run's own number
    return j;
  }

  /// Every file below the folder with its content, but the outputs of commands, texts as tokens, and the profile, which
  /// a busy machine has measured again.
  std::map<std::string, std::string> everything() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      if (entry.is_regular_file() && entry.path().filename().string().front() != '.' &&
          entry.path().parent_path().filename() != "tokens" && entry.path().filename() != "profile.json")
        files[entry.path()] = read(entry.path());
    return files;
  }

  void expect_refused_untouched(const std::string& arguments, const std::string& what) const {
    SCOPED_TRACE(arguments);
    const auto before = everything();
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 2) << f.err;
    EXPECT_NE(f.err.find(what), std::string::npos) << f.err;
    EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
    EXPECT_TRUE(before == everything()) << "something was touched";
  }

  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy(path(from), path(to), std::filesystem::copy_options::recursive);
  }
  /// As a run remembers where it is.
  std::string real(const std::string& name) const { return std::filesystem::canonical(folder_).string() + "/" + name; }

  std::string swap() const {
    for (const auto& entry : std::filesystem::directory_iterator(path("nvme"))) return entry.path();
    return "";
  }

  /// A durable run of 40 steps that a signal has stopped.
  void stop_a_run() const {
    const Finished f = signalled(options() + drive() + run("run") + "--steps 40", "run", "TERM");
    ASSERT_EQ(f.status, 1) << f.err;
    ASSERT_NE(f.err.find("sluice train --run " + path("run") + " --resume"), std::string::npos) << f.err;
  }
};

}  // namespace sluice
