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

#include "tests/scratch_dir.h"

namespace sluice {

struct Finished {
  int status = -1;  ///< exit status, -1 when a signal ended it
  std::string out, err;
};

class CommandTest : public testing::Test {
 protected:
  static std::string read(const std::filesystem::path& path);
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const;

  /// `arguments` as a shell would take them; the profile and caches live in the test's folder, which is the current
  /// one.
  Finished sluice(const std::string& arguments) const;

  /// Exit status 2, nothing on standard output, one line on standard error that contains `what`.
  void expect_refused(const std::string& arguments, const std::string& what) const;

  /// A profile of this machine and of the drive of `directory`, alone and striped over two of its directories, so that no
  /// test measures them.
  void write_profile(const std::string& directory) const;
  /// That, some text to train on, and a folder "nvme".
  void set_up_training() const;

  const ScratchDir scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

}  // namespace sluice
