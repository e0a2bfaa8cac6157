// The world of `mpirun` and `srun`: one rank in each process.
//
// Messages go from rank to rank by MPI, and what is added up is added up here (tree_sum.h), so that no algorithm of a
// library changes a bit, unless sums are asked to be MPI's own (RankSums::native). Who waits asks MPI now and then and sleeps in between: MPI's own calls would
// keep a core busy.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "src/comm/world.h"

namespace sluice {

struct MpiOptions {
  std::chrono::seconds start{120};            ///< until all processes have started: then this one ends, status 1
  std::chrono::seconds deadline{600};         ///< of a collective
  /// With a process that gives no sign of life; four times that with those that do not end when this one does.
  std::chrono::milliseconds patience{15000};
};

/// Connects this process with the others that its launcher has started; once in a process. Errors: bad_request where
/// this build has no MPI, or the one that there is can not be used by several threads; fault where it does not start.
Result<std::unique_ptr<World>> connect_by_mpi(const MpiOptions& options = {});

/// What the launcher has started, as the environment tells: one process where there is none.
struct Launched {
  int processes = 1;
  int number = 0;  ///< of this one
};
Launched launched();

}  // namespace sluice
