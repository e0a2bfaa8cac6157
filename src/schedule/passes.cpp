#include "src/schedule/passes.h"

#include <array>

namespace sluice {

PassOrder order_passes(PlanKind kind, const Workload& workload, const Schedule& schedule) {
  const bool trains = kind == PlanKind::train;
  const std::size_t units = workload.model->units.size();
  const auto head = static_cast<UnitId>(units) - 1;
  PassOrder order;
  for (const MicroBatchGroup& group : micro_batch_groups(workload, schedule, kind)) {
    for (UnitId u = 0; u < head; ++u) order.passes.push_back({Phase::forward, u, group});
    order.passes.push_back({Phase::head, head, group});
    for (UnitId u = head - 1; trains && u >= 0; --u) order.passes.push_back({Phase::backward, u, group});
  }

  // By phase and unit: its latest pass so far.
  std::array<std::vector<Pass*>, 3> latest;
  latest.fill(std::vector<Pass*>(units, nullptr));
  order.readers.resize(units);
  for (std::size_t p = 0; p < order.passes.size(); ++p) {
    Pass& pass = order.passes[p];
    const auto unit = static_cast<std::size_t>(pass.unit);
    Pass*& before = latest[static_cast<std::size_t>(pass.phase)][unit];
    pass.is_first = before == nullptr;
    pass.is_last = true;
    if (before != nullptr) before->is_last = false;
    before = &pass;
    if (pass.reads_parameters()) order.readers[unit].push_back(p);
    if (pass.phase == Phase::head && workload.model->config.tied) order.readers.front().push_back(p);
    if (trains && pass.is_first && schedule.update_ahead && pass.phase != Phase::backward)
      order.updates.push_back(pass.unit);
  }
  for (const Pass& pass : order.passes)
    if (trains && !schedule.update_ahead && pass.is_last && pass.phase != Phase::forward)
      order.updates.push_back(pass.unit);
  return order;
}

}  // namespace sluice
