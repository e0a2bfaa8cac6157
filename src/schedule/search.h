// Finds a schedule that keeps the budgets and is predicted to be fast.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/schedule/needs.h"
#include "src/schedule/recipe.h"
#include "src/schedule/smallest.h"
#include "src/schedule/wish.h"

namespace sluice {

struct SearchResult {
  Schedule schedule;
  bool fits = false;
  Recipe recipe;    ///< that the schedule came of
  TierBytes needs;  ///< of the schedule, largest over the kinds of plan that training uses
  double predicted_seconds = 0, bound_seconds = 0;  ///< of the schedule's main plan
  std::uint64_t drive_write_bytes = 0;              ///< of a training step, all ranks
};

/// Told before schedules are tried: how many have been, and the seconds of the best one so far, 0 while there is none.
using SearchWatch = std::function<void(int tried, double best_seconds)>;

/// Among schedules that are predicted to be as fast as the fastest, within half a percent, the one that writes least to
/// the drive is chosen. Budgets are those of the workload; what FrugalFamily has nothing for does
/// not fit. Never fails: `fits` tells. Deterministic; uses all cores.
SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw,
                             const SearchWatch& watch = {});

/// The device updates this share of the units, spread evenly so that it and the CPU work side by side. False if it was
/// so before.
bool spread_updates(Schedule& schedule, double share);
/// Whether the device computes beside the host in a memory of its own: only there it may pay to update on it.
bool device_is_apart(const HardwareProfile& hw);

/// The budgets of the workload as FrugalFamily takes them.
TierBytes budgets_of(const Workload& workload);

}  // namespace sluice
