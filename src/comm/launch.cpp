#include <array>
#include <cstdlib>
#include <string>

#include "src/comm/mpi.h"

namespace sluice {

Launched launched() {
  struct Names {
    const char *processes, *number;
  };
  // Open MPI; the PMI of MPICH and Slurm; Slurm.
  constexpr std::array launchers{Names{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, Names{"PMI_SIZE", "PMI_RANK"},
                                 Names{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};
  for (const Names& names : launchers) {
    const char *const processes = std::getenv(names.processes), *const number = std::getenv(names.number);
    if (processes == nullptr || std::atoi(processes) <= 1) continue;
    return {std::atoi(processes), number != nullptr ? std::atoi(number) : 0};
  }
  return {};
}

#ifndef SLUICE_HAS_MPI
Result<std::unique_ptr<World>> connect_by_mpi(const MpiOptions&) {
  const std::string count = std::to_string(launched().processes);
  return bad_request("this was started as one of " + count +
                     " processes, and this build of sluice has no MPI: install libopenmpi-dev and build again, or "
                     "start one process with --ranks " +
                     count);
}
#endif

}  // namespace sluice
