// Speculative steps beside those of a schedule that waits for its norm.
#pragma once

#include "src/train/request/prepare.h"

namespace sluice {

/// The run's schedule with updates in the backward pass, or in both: steps that wait for their norm are as they were.
/// Device memory that gradients have in those is used by the others as is best for them (Schedule::waiting). Without
/// fits, where there is no room.
SearchResult turned_round(const Prepared& run, const ScheduleWish& wish);

}  // namespace sluice
