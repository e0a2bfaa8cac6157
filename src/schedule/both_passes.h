// Updates in both passes of a step: which units wait for their next forward pass.
//
// In the backward pass a step takes twice the time that it takes forward, and updates move as many bytes wherever they
// are. Where the drive has about as much to do as what computes, updates in one pass leave it idle in the other; so a
// part of them, spread evenly over the model, comes in each.
#pragma once

#include <array>
#include <functional>

#include "src/schedule/schedule.h"

namespace sluice {

/// Of updates in the backward pass: sublayers with this share of their parameters are late, spread evenly over the
/// model; embedding and head, which are large, with more than half of them. False if it was so before, and of other
/// schedules.
bool spread_late(const Workload& workload, Schedule& schedule, double share);
/// Gradients of late units wait until the next step. Where host memory has no room for them, states of as
/// few units as possible leave it for the drive, late ones first. False where that does not help.
bool make_room_for_late(Schedule& schedule, const std::function<bool(const Schedule&)>& fits);
/// Of a schedule with room for gradients of all units in memory (Schedule::both_orders): they are kept there, so
/// that a gradient does not wait for its update, nor that for the commit in the middle of the step.
void keep_in_memory(Schedule& schedule);
/// Of the sublayers' parameters, that are late.
double late_share(const Workload& workload, const Schedule& schedule);

/// Shares that a search begins with, and how far it goes from the best of those.
inline constexpr std::array late_shares{0.5, 0.25, 0.75};
inline constexpr std::array late_steps{0.125, -0.125, 0.0625, -0.0625};

/// The share, of 0 and some others, whose steps are quickest: a few are asked. `seconds` is of a share, and at most 0
/// where there is no room for it.
double quickest_share(double seconds_without, const std::function<double(double share)>& seconds);

}  // namespace sluice
