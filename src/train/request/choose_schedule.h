// Which schedule a run gets that was given none, and whether its steps are durable.
#pragma once

#include "src/train/request/prepare.h"

namespace sluice {

/// The configuration's wishes, with what follows from the optimizer and from what ranks share.
ScheduleWish wish_of(const Prepared& run);

/// Of more units than a search takes as it is: the programme for activations would take minutes for all candidates.
bool is_long(const Workload& w);

/// By Prepared::wish, into Prepared::search. Durable where it can be: with a run directory, a drive, and room on it for
/// both slots.
void choose_schedule(Prepared& run, const Tell& progress, Effort effort);

}  // namespace sluice
