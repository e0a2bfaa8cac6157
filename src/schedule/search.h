// Finds a schedule that keeps the budgets and is predicted to be fast.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/schedule/schedule.h"

namespace sluice {

/// What the user fixed; everything unset is searched.
struct ScheduleWish {
  std::optional<int> group;  ///< 1 = horizontal, all micro-batches = vertical
  std::optional<bool> update_ahead;
  std::optional<bool> recompute;     ///< all sublayers recompute, or none does
  std::optional<Place> activations;  ///< where boundary activations wait
  std::optional<int> prefetch;
  std::optional<Place> states;           ///< home of parameters and optimizer states: host or nvme
  std::optional<bool> resident;          ///< parameters stay on the device, or none does
  std::optional<bool> update_on_device;  ///< of all units, or of none
};

/// Arena bytes per tier (device of one rank; host and nvme of one rank's share).
struct TierBytes {
  std::uint64_t device = 0, host = 0, nvme = 0;
};

struct SearchResult {
  Schedule schedule;
  bool fits = false;
  TierBytes needs;     ///< of the schedule, largest over the kinds of plan that training uses
  TierBytes smallest;  ///< of the most frugal schedule that the wish allows
  double predicted_seconds = 0, bound_seconds = 0;  ///< of the schedule's main plan
  std::size_t ops = 0;
};

/// Told before each schedule that is tried: the seconds of the best one so far, 0 while there is none.
using SearchWatch = std::function<void(double best_seconds)>;

/// Budgets are those of the workload. Never fails: `fits` tells. Deterministic.
SearchResult search_schedule(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw,
                             const SearchWatch& watch = {});

/// The device updates this share of the units, spread evenly so that it and the CPU work side by side. False if it was
/// so before.
bool spread_updates(Schedule& schedule, double share);
/// Whether the device computes beside the host in a memory of its own: only there it may pay to update on it.
bool device_is_apart(const HardwareProfile& hw);

/// Arena bytes that a run with this schedule needs: the largest over train, flush and evaluate plans.
TierBytes run_needs(const Workload& workload, const Schedule& schedule);

}  // namespace sluice
