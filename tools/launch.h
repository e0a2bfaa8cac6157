// Processes that a launcher has started together: mpirun, srun.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "src/comm/world.h"
#include "tools/commands.h"
#include "tools/run_options.h"

namespace sluice::tools {

/// Runs a command that ranks may be processes of: `work` on each of them, with null where there is one. All end alike,
/// and the first one says why; where a process is lost, each of the others does. The options get the number of ranks.
/// Refused, with one line: --ranks that says otherwise, machines with different numbers of processes, processes that
/// differ in program, options or clock.
using RankWork = std::function<Status(const std::set<std::string>& given, World* world)>;
void run_on_ranks(const char* command, RunOptions& options, std::set<std::string> given, Outcome& outcome,
                  const RankWork& work);

/// For commands of one process: bad_request where there are several.
Status check_alone(const std::string& command);
/// Whether this process is the first of those that were started: who prints.
bool is_first_process();

}  // namespace sluice::tools
