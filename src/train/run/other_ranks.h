// A run that goes on with another number of ranks than it was cut short with.
//
// Its states are written as a snapshot, which is in logical order and knows no ranks; run.json then takes the new
// layout, and the run goes on from the snapshot. Until the first commit of the new layout is on the drive the snapshot
// is what the run is: killed at any moment, it goes on from it again.
#pragma once

#include <cstdint>

#include "src/train/states/restore.h"

namespace sluice {

/// Of a durable run: the newest step whose states are whole, every block verified, into directory.snapshot_path(),
/// which is read again. Returns the step. Nothing else is written. `now` says where the drives are, and how they are
/// asked. Errors: bad_request, ahead of all work, where the directory has no room for the snapshot.
Result<std::uint64_t> save_for_other_ranks(const RunDirectory& directory, const RunConfig& now,
                                           const RestoreListener& listener);

}  // namespace sluice
