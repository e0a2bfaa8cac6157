// What of a schedule the user fixed.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

/// What becomes of activations, by name. none: all that sublayers save is kept. full: it is made again from each
/// sublayer's input, and these are kept. sqrt: of the inputs of n sublayers about the square root of n are kept, and
/// the others are made again (arXiv 1604.06174). revolve: as many inputs as there is room for on the device, and the
/// others made again with the fewest passes forward (Griewank and Walther 2000). optimal: src/schedule/chain.h.
enum class Recompute : std::uint8_t { none, full, sqrt, revolve, optimal };
constexpr std::array<const char*, 5> recompute_names{"none", "full", "sqrt", "revolve", "optimal"};

/// When the optimizer works. ahead: ahead of a unit's next forward pass, with the global norm known. backward: in the
/// backward pass, behind the unit's gradient. speculative: the same where steps clip, as if this one would not; where
/// its norm says otherwise, its updates, or all of it, are made again from the states that were committed.
enum class UpdateOrder : std::uint8_t { ahead, backward, speculative };
constexpr std::array<const char*, 3> update_order_names{"ahead", "backward", "speculative"};

/// Everything unset is searched.
struct ScheduleWish {
  PipelineChoice pipeline;   ///< of several stages
  std::optional<int> group;  ///< 1 = horizontal, all micro-batches = vertical
  std::optional<UpdateOrder> update;
  bool both_orders = false;  ///< of updates in the backward pass, see Schedule
  bool mixes = false;        ///< of those, some may wait for the forward pass (UnitChoice::late)
  bool carries = true;       ///< where updates come ahead of the forward pass, gradients may wait on the device
  std::optional<Recompute> recompute;
  std::optional<Place> activations;  ///< where boundary activations wait
  std::optional<int> prefetch;
  std::optional<Place> states;           ///< home of parameters and optimizer states: host or nvme
  std::optional<bool> resident;          ///< parameters stay on the device, or none does
  std::optional<bool> held;              ///< from a step's first pass over them to its last, or of one pass each
  std::optional<bool> second_copy;       ///< of close ranks, of all units
  std::optional<bool> update_on_device;  ///< of all units, or of none
};

/// The schedule with the user's choices put over it.
Schedule fixed(Schedule schedule, const ScheduleWish& wish);

/// The orders of optimizer and backward pass (Schedule::update_ahead) that are open: both where nothing needs the
/// global norm first.
std::vector<bool> open_updates(const Workload& workload, const ScheduleWish& wish);

/// Whether updates may come in both passes. Stages of a pipeline meet between a commit and what is written behind it at
/// a step's beginning, and there it comes in the middle.
bool can_mix(const Workload& workload);

/// The sizes of groups of micro-batches that are open, ascending: those that the pipeline's order can take. Never
/// empty.
std::vector<int> open_groups(const Workload& workload, const ScheduleWish& wish);

}  // namespace sluice
