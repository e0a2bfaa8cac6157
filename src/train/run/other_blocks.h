// A run whose states stay where they are on the drive while what a checksum covers changes, since plans of other
// budgets or lengths have other tiles.
#pragma once

#include <cstdint>
#include <functional>

#include "src/train/states/restore.h"

namespace sluice {

/// Reads the newest step that is whole, every block verified as the run's plan has them, and writes records of it as
/// the plans of `now` have them: they are the run's when run.json has that layout. `check` hears the step before
/// anything is written. Returns the step. Errors as restore_newest's. All processes of the world call it.
Result<std::uint64_t> commit_other_blocks(const RunDirectory& directory, const Prepared& now, World& world,
                                          const RestoreListener& listener,
                                          const std::function<Status(std::uint64_t step)>& check);

}  // namespace sluice
