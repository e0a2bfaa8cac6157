// A directory of a test's own. Tests run side by side, each in a process of its own: whatever one writes lies in here.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

namespace sluice {

/// Beneath the directory for temporary files (TMPDIR), or beneath `parent` where a test needs a disk ("." or
/// ScratchDir::disk()) or a tmpfs ("/dev/shm"). Removed with everything in it.
class ScratchDir {
 public:
  explicit ScratchDir(const std::string& parent = std::filesystem::temp_directory_path().string()) {
    std::string pattern = std::filesystem::absolute(parent).string() + "/sluice-test-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no scratch directory in " << parent;
    path_ = pattern;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  /// A parent that is no memory file system where there is a choice: those have no direct I/O.
  static std::string disk() { return std::filesystem::exists("/var/tmp") ? "/var/tmp" : "."; }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::string path_;
};

}  // namespace sluice
