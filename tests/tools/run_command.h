// Runs that are stopped, and everything that they leave.
#pragma once

#include <algorithm>
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
                     int lines_min = 3, const std::string& launcher = "") const;

  using json = nlohmann::json;

  /// Of the run's metrics, without times.
  std::vector<json> lines(const std::string& name) const;

  json result(const std::string& name) const;

  /// Every file below the folder with its content, but the outputs of commands, texts as tokens, and the profile, which
  /// a busy machine has measured again.
  std::map<std::string, std::string> everything() const;

  void expect_refused_untouched(const std::string& arguments, const std::string& what) const;

  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::copy(path(from), path(to), std::filesystem::copy_options::recursive);
  }
  /// As a run remembers where it is.
  std::string real(const std::string& name) const { return std::filesystem::canonical(folder_).string() + "/" + name; }

  std::string swap() const;

  /// A durable run of 40 steps that a signal has stopped.
  void stop_a_run() const;
};

}  // namespace sluice
