// What work that is refused has made in a directory goes again.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace sluice {

class NewFiles {
 public:
  /// Of a directory, which need not be there; empty: none.
  explicit NewFiles(std::string directory) : directory_(std::move(directory)), before_(files()) {}
  ~NewFiles() {
    std::error_code ignored;
    for (const std::string& file : files())
      if (!before_.contains(file)) std::filesystem::remove(file, ignored);
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;
  void keep() { directory_.clear(); }

 private:
  std::set<std::string> files() const {
    std::set<std::string> found;
    std::error_code error;
    if (directory_.empty()) return found;
    for (std::filesystem::directory_iterator at(directory_, error), end; !error && at != end; at.increment(error))
      found.insert(at->path().string());
    return found;
  }
  std::string directory_;
  std::set<std::string> before_;
};

}  // namespace sluice
