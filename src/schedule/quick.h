// A schedule for a large workload, found soon: a few recipes are followed and compared on a sample of it.
#pragma once

#include <optional>

#include "src/schedule/estimate.h"
#include "src/schedule/recipe.h"
#include "src/schedule/search.h"

namespace sluice {

struct QuickSchedule {
  Schedule schedule;
  Recipe recipe;
  StepEstimate estimate;
};

struct QuickLook {
  double margin = 1;           ///< live bytes of the sample times it keep its budgets: of the whole that is nearly so
  bool* leaves_out = nullptr;  ///< set where some recipes were too long to look at
  /// The one recipe that is like it in group, in what has room first, and in whether activations are balanced.
  const Recipe* only = nullptr;
  SearchWatch watch{};  ///< of each that was tried, its seconds
};

/// The quickest of a few recipes; none where nothing was found that fits.
std::optional<QuickSchedule> quick_schedule(const Workload& workload, const ScheduleWish& wish,
                                            const HardwareProfile& hw, const QuickLook& look = {});

/// How many times the budget is taken where that is most; at least 1.
double excess(const TierBytes& needs, const std::array<std::uint64_t, 3>& budget_bytes);

/// The first of those that keeps the whole's budgets as it is packed; where that is none, `fits` is false. Of a
/// workload that no sample stands for this is search_schedule.
SearchResult search_quickly(const Workload& workload, const ScheduleWish& wish, const HardwareProfile& hw,
                            const SearchWatch& watch = {});

}  // namespace sluice
