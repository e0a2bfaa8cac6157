// The leader's decisions as text, for the other processes of a run.
#pragma once

#include <string>

#include "src/comm/world.h"
#include "src/train/request/prepare.h"

namespace sluice {

/// The run's configuration with the budgets that there was room for where its user left them open.
RunConfig with_budgets(const Prepared& run);

/// With all that its user left open as it has been decided: another time it would be decided otherwise.
RunConfig with_decisions(const Prepared& run);

/// With the signatures of the plans.
std::string decided_text(const Prepared& run, Purpose purpose);

/// The leader's run as this process has it. `own` has what is no part of the text: faults that tests inject. Errors:
/// fault where its plans are others than the leader's.
Result<std::unique_ptr<Prepared>> prepare_from_text(const std::string& text, const RunConfig& own);

/// The leader's, on all. `own` of the leader has what it has prepared, or why it has not; that of the others is not
/// looked at. All get the same error. `config` is this process's, as above.
Result<std::unique_ptr<Prepared>> share_prepared(World& world, Result<std::unique_ptr<Prepared>> own, Purpose purpose,
                                                 const RunConfig& config);

}  // namespace sluice
