// Runs the sluice binary as a person would, with its outputs apart.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "src/device/profile.h"
#include "tests/scratch_dir.h"

namespace sluice {

struct Finished {
  int status = -1;  ///< exit status, -1 when a signal ended it
  std::string out, err;
};

class CommandTest : public testing::Test {
 protected:
  static std::string read(const std::filesystem::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  /// `arguments` as a shell would take them; the profile and caches live in the test's folder, which is the current
  /// one.
  Finished sluice(const std::string& arguments) const {
    const std::string command = "cd " + path("") + " && XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " +
                                arguments + " >" + path(".out") + " 2>" + path(".err") + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
  }

  /// Exit status 2, nothing on standard output, one line on standard error that contains `what`.
  void expect_refused(const std::string& arguments, const std::string& what) const {
    const Finished f = sluice(arguments);
    EXPECT_EQ(f.status, 2) << arguments << "\n" << f.err;
    EXPECT_EQ(f.out, "") << arguments;
    EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << arguments << "\n" << f.err;
    EXPECT_EQ(f.err.rfind("sluice", 0), 0u) << f.err;
    EXPECT_NE(f.err.find(what), std::string::npos) << arguments << "\n" << f.err;
  }

  /// A profile of this machine and of the drive of `directory`, so that no test measures them.
  void write_profile(const std::string& directory) const {
    HardwareProfile profile;
    profile.machine = machine_id();
    profile.drives[drive_key(std::vector<std::string>{directory})] = {};
    ASSERT_TRUE(save_profile(path("cache/sluice/profile.json"), profile).ok());
  }
  /// That, some text to train on, and a folder "nvme".
  void set_up_training() const {
    write_profile(path(""));
    std::string text;
    while (text.size() < 20000) text += "the quick brown fox jumps over the lazy dog; ";
    write("text", text);
    std::filesystem::create_directory(path("nvme"));
  }

  const ScratchDir scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

}  // namespace sluice
