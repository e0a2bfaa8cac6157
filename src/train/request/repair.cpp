#include "src/train/request/repair.h"

namespace sluice {
namespace {

/// Of the ranks of a machine: of what the drive has of states, that which a predicate of buffer and the unit's choices
/// holds for.
template <class F>
std::uint64_t kept_bytes(const Prepared& run, const F& counts) {
  std::uint64_t bytes = 0;
  for (std::size_t s = 0; s < run.stages.size(); ++s)
    for (const Buffer& b : run.stages[s].main.buffers) {
      const bool is_kept = b.tier == Tier::nvme && (b.holds == Holds::home || b.holds == Holds::mirror);
      if (is_kept && counts(b, run.search.schedule.units[static_cast<std::size_t>(b.unit)]))
        bytes += b.bytes * run.ranks_here(static_cast<RankId>(s));
    }
  return bytes;
}

bool stays_on_device(const Buffer& b, const UnitChoice& unit) {
  return b.state == StateKind::parameter && unit.resident;
}

}  // namespace

Repair predict_repair(const Prepared& run) {
  Repair repair;
  repair.loaded_bytes = kept_bytes(run, [](const Buffer& b, const UnitChoice& unit) {
    return b.holds == Holds::mirror || stays_on_device(b, unit);
  });
  repair.from_gradients = run.search.schedule.keeps_gradients;
  // Given up at its end, and then its updates, or all of it, with nothing beside it.
  const double again = repair.from_gradients ? run.stages.front().predicted_flush.step_seconds : run.step_seconds();
  repair.seconds =
      run.step_seconds() + again + static_cast<double>(repair.loaded_bytes) / run.profile.drive.read_bytes_per_second;
  return repair;
}

double predict_change_seconds(const Prepared& run) {
  if (run.search.schedule.waiting.empty()) return 0;
  return static_cast<double>(kept_bytes(run, stays_on_device)) / run.profile.drive.read_bytes_per_second;
}

}  // namespace sluice
