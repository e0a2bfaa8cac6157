// How much memory of each tier a schedule takes.
#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

/// Arena bytes per tier (device of one rank; host and nvme of one rank's share).
struct TierBytes {
  std::uint64_t device = 0, host = 0, nvme = 0;

  std::uint64_t& of(Tier t) { return t == Tier::device ? device : t == Tier::host ? host : nvme; }
  std::uint64_t of(Tier t) const { return t == Tier::device ? device : t == Tier::host ? host : nvme; }
  bool operator==(const TierBytes&) const = default;
};

/// Whether they keep the budgets, with `margin` times as much taken; a budget of 0 is none.
bool within(const TierBytes& needs, const std::array<std::uint64_t, 3>& budget_bytes, double margin = 1);

/// Arena bytes that a run with this schedule needs on a rank of each stage: the largest over its kinds of plan (train,
/// evaluate, flush), packed as they will be.
std::vector<TierBytes> stage_needs(const Workload& workload, const Schedule& schedule);
/// Of each tier the most of any stage.
TierBytes run_needs(const Workload& workload, const Schedule& schedule);

/// At least so much: the most bytes alive at one point of program order. Packing comes within 2% of it, at a far higher
/// price. The plans of steps alone take half the time to look at; the others are hardly ever larger. own: of a schedule
/// with both orders, without that of `ahead`.
enum class Plans : std::uint8_t { own, main, all };
TierBytes live_needs(const Workload& workload, const Schedule& schedule, Plans plans = Plans::all);
/// The same of some stages alone: those at the ends of a long pipeline, and one between, of which one takes most as a
/// rule. The first hold most micro-batches and the embedding, the last one the head.
TierBytes usual_needs(const Workload& workload, const Schedule& schedule, Plans plans);

}  // namespace sluice
