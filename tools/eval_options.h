// Options that say what a model is evaluated on.
#pragma once

#include <string_view>

#include "tools/run_options.h"

namespace sluice::tools {

void add_eval_set_options(Command* app, RunOptions* options);    ///< --eval-split, --eval-data
void add_evaluation_options(Command* app, RunOptions* options);  ///< those, and when and how much: of train
/// Takes "all" too, for 0.
Option* add_batches(Command* app, std::string_view name, int* batches, std::string_view description);

/// The part that is held out where nothing is said.
inline constexpr double default_eval_split = 0.05;
/// What of it goes into the RunConfig: names and places of the sets, absolute ones for a run that is kept.
Status resolve_evaluation(const RunOptions& options, RunConfig& config);

}  // namespace sluice::tools
