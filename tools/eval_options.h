// Options that say what a model is evaluated on.
#pragma once

#include "tools/run_options.h"

namespace sluice::tools {

void add_eval_set_options(CLI::App* app, RunOptions* options);    ///< --eval-split, --eval-data
void add_evaluation_options(CLI::App* app, RunOptions* options);  ///< those, and when and how much: of train
/// Takes "all" too, for 0.
CLI::Option* add_batches(CLI::App* app, const std::string& name, int* batches, const std::string& description);

/// The part that is held out where nothing is said.
inline constexpr double default_eval_split = 0.05;
/// What of it goes into the RunConfig: names and places of the sets, absolute ones for a run that is kept.
Status resolve_evaluation(const RunOptions& options, RunConfig& config);

}  // namespace sluice::tools
