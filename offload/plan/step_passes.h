// The passes of a step: maximal runs, in program order, of compute ops of one unit in one direction.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/plan/simulate.h"

namespace sluice {

struct StepPass {
  UnitId unit = -1;
  bool backward = false;
};
struct StepPasses {
  std::vector<StepPass> all;         ///< in program order
  std::vector<std::uint32_t> of_op;  ///< index in `all`; other ops belong to the pass of the compute op before them
};
StepPasses step_passes(const StepPlan& plan);

/// What no pass of a unit in a direction is faster than.
struct PassBound {
  StepPass pass;
  std::uint32_t times = 0;             ///< passes of the step that are alike
  ResourceSeconds resource_seconds{};  ///< work / rate, of all of them together
  double bound_seconds = 0;            ///< sum of each one's largest
  Resource limit = Resource::compute;  ///< that is largest most of the time
};
/// One for each unit and direction, in the order of first passes.
std::vector<PassBound> pass_bounds(const StepPlan& plan, const HardwareProfile& hw);

/// How long they took, in the order of pass_bounds: each from the start of its first compute op to that of the next
/// pass, the last one to the end of its compute.
std::vector<double> pass_seconds(const StepPlan& plan, const Timeline& timeline);

}  // namespace sluice
