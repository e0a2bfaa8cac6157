// What `sluice eval` is asked for: sets of windows, and how they go through the model.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/train/data/eval_sets.h"
#include "src/train/run/run_directory.h"
#include "tools/run_options.h"

namespace sluice::tools {

struct EvalRequest {
  RunOptions options;
  int batches = 4;        ///< of each set
  bool all_text = false;  ///< instead, every window from the start of each file
};

/// Not movable, since sets point at the file.
struct EvalTask {
  RunConfig config;                   ///< of the model and the passes; without data
  std::optional<RunDescription> run;  ///< whose model it is, where its directory is given
  bool as_run = false;                ///< its sets are evaluated
  RunConfig data;                     ///< of the sets
  TokenFile file;                     ///< of data.data, where there is one
  Batches batches;
  std::vector<EvalSet> sets;
};

/// With a run as the model, what the options (`given` are their names) leave out is as the run has it: its sets, the
/// windows that it evaluates of them, and what the bits of their losses depend on. Checks all of it and writes nothing.
/// `watch`: as Request has it.
Status describe(const EvalRequest& request, const std::set<std::string>& given,
                const std::function<void(const std::string& what, double fraction)>& watch, EvalTask& task);

/// Opens and tokenizes what is to be evaluated; `watch` hears how far that is, and its error ends it. bad_request where
/// that is nothing, or where the run's data is not what it was.
Status open_sets(const EvalRequest& request, const std::function<void(const std::string&)>& note,
                 const std::function<Status(double fraction)>& watch, EvalTask& task);

}  // namespace sluice::tools
