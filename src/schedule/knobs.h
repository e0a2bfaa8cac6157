// Small changes of a schedule that a search tries one at a time, and the fewest moves that make room.
#pragma once

#include <cstddef>
#include <functional>

#include "src/schedule/schedule.h"

namespace sluice {

/// False if there is nothing to change, or no further in that direction: what was changed is not used then.
using Change = std::function<bool(Schedule&)>;

Change prefetch_changed(int by);
Change lag_changed(int by);
Change tiles_in_flight_changed(int by);
Change activations_ahead_changed(int by);
/// Tiles of 2^doublings times as many parameters. The workload outlives it.
Change tiles_scaled(const Workload& workload, int doublings);

/// Makes as few of `count` moves as possible, the first ones, so that the schedule fits: `moved` is the schedule with
/// so many. False, and nothing changed, where all of them do not help.
bool make_room(Schedule& schedule, std::size_t count, const std::function<Schedule(std::size_t moves)>& moved,
               const std::function<bool(const Schedule&)>& fits);

}  // namespace sluice
