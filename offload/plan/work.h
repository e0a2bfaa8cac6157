// Work of a set of ops, summed per resource.
#pragma once

#include <array>
#include <vector>

#include "offload/plan/cost.h"
#include "offload/plan/simulate.h"

namespace sluice::planning {

struct Work {
  double compute_seconds = 0, core_seconds = 0, memory_seconds = 0, read_bytes = 0, write_bytes = 0, other_bytes = 0;
  double flush_seconds = 0;  ///< of the drive
  double link_down_seconds = 0, link_up_seconds = 0;
  std::vector<double> network_seconds;  ///< by group: each has a lane of its own

  void add(const OpCost& cost);
  /// Per Resource: seconds at the full rate. Cores, memory, drive and links are shared by the ranks of the machine,
  /// which all have as much to do. Of the network: the group with the most.
  ResourceSeconds seconds(const HardwareProfile& hw) const;
};

/// Sum over passes of each pass's largest resource; see Simulation::pass_bound_seconds.
double pass_bound(const StepPlan& plan, const HardwareProfile& hw);

}  // namespace sluice::planning
