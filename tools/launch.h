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

/// The world that this process was started in, in which ranks are processes; null where it was started alone. Every
/// process calls it with its options, which get their number of ranks. Errors, the same on all: bad_request where
/// --ranks says otherwise, where machines have different numbers of processes, or where processes differ in program,
/// options or clock.
Result<std::unique_ptr<World>> join_world(RunOptions& options, std::set<std::string>& given);

/// Runs a command that ranks may be processes of: `work` on each of them, with null where there is one. All end alike,
/// and the first one says why; where a process is lost, each of the others does.
using RankWork = std::function<Status(const std::set<std::string>& given, World* world)>;
void run_on_ranks(const char* command, RunOptions& options, std::set<std::string> given, Outcome& outcome,
                  const RankWork& work);

/// For commands of one process: bad_request where there are several.
Status check_alone(const std::string& command);
/// Whether this process is the first of those that were started: who prints.
bool is_first_process();

}  // namespace sluice::tools
