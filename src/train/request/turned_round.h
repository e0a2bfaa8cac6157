// Speculative steps beside those of a schedule that waits for its norm.
#pragma once

#include "src/train/request/prepare.h"

namespace sluice {

/// Who waits for its norm is as good as slower than another by this factor.
inline constexpr double as_good_as = 1.02;

/// The run's schedule with updates in the backward pass, or in both: steps that wait for their norm are as they were.
/// Device memory that gradients have in those is used by the others as is best for them (Schedule::waiting). Without
/// fits, where there is no room.
SearchResult turned_round(const Prepared& run, const ScheduleWish& wish);

}  // namespace sluice
