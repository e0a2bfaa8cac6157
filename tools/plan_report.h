// What `sluice plan` says of a run that is prepared: what is counted of it, and how that is told.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "src/train/request/advice.h"
#include "src/train/request/prepare.h"

namespace sluice::tools {

/// What takes seconds of large models to find out beside the plan, and is asked for once.
struct Findings {
  SmallestBudgets smallest;
  Advice advice;  ///< where the run fits
  /// That activations ask more of the scarcest resource than a lower bound of that; of training runs that fit.
  std::optional<double> activation_gap;
};
Findings find_out(const Prepared& run);

double tokens_per_second(const Prepared& run);
/// With sequences as they are now.
std::int64_t run_steps(const Prepared& run);
double run_seconds(const Prepared& run);
/// Of a step, of all stages.
std::size_t ops_of(const Prepared& run);
/// Whose updates wait for their next forward.
std::ptrdiff_t units_updated_ahead(const Schedule& schedule);

/// "L0.attention to L3.mlp", and behind a comma the stage's next chunk.
std::string units_of(const Prepared& run, RankId stage);
/// Of a stage's compute lane, the part of the step in which it does nothing.
double idle_share(const StagePlans& stage);
/// Of a run that clips: from the end of a stage's compute in a step until the norm of all stages is known, which is
/// where its next step begins. In seconds.
double norm_wait_seconds(const StagePlans& stage);

/// The object of --json, and what a report is made of; of a run that does not fit, the smallest budgets and settings.
nlohmann::ordered_json plan_json(const Prepared& run, const Findings& findings);
/// On standard output, of a run that fits: ranks, memory, what lies where, times.
void print_plan(const Prepared& run, const Findings& findings);

}  // namespace sluice::tools
