// What fuzz targets share: inputs as files in memory, and invariants that end the program.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "sluice/status.h"

namespace sluice::fuzz {

/// A folder, in memory where there is one for that, that ends with the process.
class Folder {
 public:
  Folder() {
    const bool memory = access("/dev/shm", W_OK) == 0;
    std::string made =
        (memory ? std::string("/dev/shm") : std::filesystem::temp_directory_path().string()) + "/sluice-fuzz-XXXXXX";
    SLUICE_CHECK(mkdtemp(made.data()) != nullptr, "mkdtemp");
    path_ = made;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  /// Writes a file of the folder anew and returns its path.
  std::string write(const std::string& name, std::span<const std::uint8_t> bytes) const {
    const std::string file = path_ + "/" + name;
    const int fd = open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    SLUICE_CHECK(fd >= 0 && ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
    close(fd);
    return file;
  }

 private:
  std::string path_;
};

/// An error is one line and the request's fault.
inline void check_refusal(const Error& error) {
  SLUICE_CHECK(error.code == ErrorCode::bad_request, "(%s)", error.message.c_str());
  SLUICE_CHECK(!error.message.empty() && error.message.find('\n') == std::string::npos, "(%s)", error.message.c_str());
}

}  // namespace sluice::fuzz
