// What the machine of a run gives it: budgets, and a profile of how fast it is. Measured, or described by a file
// (--cluster).
#pragma once

#include "src/train/request/prepare.h"

namespace sluice {

/// Fills in the budgets per rank and the profile of a request that is described, and the device's name. What the
/// profile lacks is measured, and kept in its file; `measures`: also the ops of the run's sublayers, and what earlier
/// runs contradict. bad_request for a device, a drive or budgets that are not there.
Status take_machine(Prepared& run, bool measures, const Tell& progress);

/// What the ranks of a machine share, in the profile.
Status set_sharing(Prepared& run);

}  // namespace sluice
