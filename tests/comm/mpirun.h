// Starts processes that MPI connects, as tests need it: on any machine, with fewer cores than processes, as root too.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace sluice::test {

/// ThreadSanitizer sees half of what MPI does, which is not built for it, and takes the rest for races.
#if defined(SLUICE_HAS_MPI) && !defined(__SANITIZE_THREAD__)
constexpr bool has_mpi = true;
#else
constexpr bool has_mpi = false;
#endif

/// What mpirun needs of the shell in front of it.
inline const char* const mpi_environment =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
    "OMPI_MCA_hwloc_base_binding_policy=none "
#ifdef __SANITIZE_ADDRESS__
    "ASAN_OPTIONS=detect_leaks=0 "  // MPI's own
#endif
    ;

struct Ended {
  int status = -1;     ///< exit status, -1 when a signal ended it
  std::string output;  ///< standard output and error
};

inline Ended mpirun(int processes, const std::string& command) {
  const std::string line =
      mpi_environment + ("mpirun -n " + std::to_string(processes)) + " " + command + " 2>&1 </dev/null";
  Ended ended;
  FILE* const pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    ended.output.append(buffer.data(), count);
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

}  // namespace sluice::test
