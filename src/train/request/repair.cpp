#include "src/train/request/repair.h"

namespace sluice {
namespace {

/// Of a rank: what lies in host memory, and the parameters that stay on the device.
std::uint64_t loaded_bytes(const StagePlans& stage, const Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const Buffer& b : stage.main.buffers) {
    const bool copied = b.holds == Holds::mirror;
    const bool resident = b.holds == Holds::home && b.tier == Tier::nvme && b.state == StateKind::parameter &&
                          schedule.units[static_cast<std::size_t>(b.unit)].resident;
    if (copied || resident) bytes += b.bytes;
  }
  return bytes;
}

}  // namespace

Repair predict_repair(const Prepared& run) {
  Repair repair;
  for (std::size_t s = 0; s < run.stages.size(); ++s)
    repair.loaded_bytes += loaded_bytes(run.stages[s], run.search.schedule) * run.ranks_here(static_cast<RankId>(s));
  repair.from_gradients = run.search.schedule.keeps_gradients;
  // Given up at its end, and then its updates, or all of it, with nothing beside it.
  const double again = repair.from_gradients ? run.stages.front().predicted_flush.step_seconds : run.step_seconds();
  repair.seconds =
      run.step_seconds() + again + static_cast<double>(repair.loaded_bytes) / run.profile.drive.read_bytes_per_second;
  return repair;
}

}  // namespace sluice
