// What this program and its libraries ask of the system for files: watched, and made to fail.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

/// One that has returned.
struct SystemCall {
  std::string name;  ///< "open", "write", "fsync", "allocate", "rename", "make" (a directory), "unlink"
  std::string path;  ///< of its file
  std::string to;    ///< rename: the new one
};

/// One that is to do nothing and to fail.
struct FailingCall {
  static constexpr int kills = -1;      ///< instead of failing it kills the process
  std::vector<std::string> names = {};  ///< of those that count; empty: all
  std::uint64_t nth = 0;                ///< of them, from 1 on; 0: none fails
  int error = 0;
  std::string within = {};  ///< those count whose paths have this
};

/// From its construction to its end, of all threads; one at a time. Opening counts where it may make the file.
class SystemCalls {
 public:
  explicit SystemCalls(FailingCall failing = {});
  ~SystemCalls();
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;

  bool has_failed() const;  ///< the nth call was made
  std::vector<SystemCall> made() const;
};

}  // namespace sluice::test
