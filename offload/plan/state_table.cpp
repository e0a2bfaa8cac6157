#include "offload/plan/state_table.h"

#include <algorithm>

namespace sluice {

StateTable::StateTable(const StepPlan& plan) {
  UnitId units = 0;
  for (const Buffer& b : plan.buffers) units = std::max(units, b.unit + 1);
  homes_.assign(static_cast<std::size_t>(units) * state_names.size(), no_buffer);
  mirrors_ = kept_ = homes_;
  residents_.assign(static_cast<std::size_t>(units), no_buffer);
  for (BufferId id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& b = plan.buffers[id];
    switch (b.holds) {
      case Holds::work: break;
      case Holds::home: homes_[index(b.unit, b.state)] = id; break;
      case Holds::mirror: mirrors_[index(b.unit, b.state)] = id; break;
      case Holds::resident: residents_[static_cast<std::size_t>(b.unit)] = id; break;
      case Holds::rope: rope_ = id; break;
      case Holds::logits: logits_ = id; break;
    }
    if ((b.holds == Holds::home || b.holds == Holds::mirror) && b.tier == Tier::nvme) kept_[index(b.unit, b.state)] = id;
  }
}

}  // namespace sluice
