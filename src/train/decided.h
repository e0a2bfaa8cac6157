// The leader's decisions as text, for the other processes of a run.
#pragma once

#include <string>

#include "src/train/prepare.h"

namespace sluice {

/// With the signatures of the plans.
std::string decided_text(const Prepared& run);

/// The leader's run as this process has it. `own` has what is no part of the text: faults that tests inject. Errors:
/// fault where its plans are others than the leader's.
Result<std::unique_ptr<Prepared>> prepare_from_text(const std::string& text, const RunConfig& own);

}  // namespace sluice
