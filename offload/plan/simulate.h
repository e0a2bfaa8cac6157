// A discrete-event simulation of a plan on a measured machine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/plan.h"
#include "sluice/profile.h"

namespace sluice {

/// One op's life in one iteration, seconds from the start of the first iteration simulated or measured.
struct Span {
  OpId op;
  std::uint32_t iteration = 0;
  double start = 0, end = 0;
};
using Timeline = std::vector<Span>;

/// Resources that lanes share. No step is faster than the largest work / rate over them.
enum class Resource : std::uint8_t { compute, cores, memory, drive, link_down, link_up };
constexpr std::array<const char*, 6> resource_names{"compute", "cores", "memory", "nvme", "h2d", "d2h"};

struct Simulation {
  double step_seconds = 0;        ///< steady state: time between the ends of consecutive iterations of a cyclic plan
  double bound_seconds = 0;       ///< the time law: largest over resources of the step's work / rate
  double pass_bound_seconds = 0;  ///< sum over passes (unit, direction) of each pass's largest resource
  Resource bottleneck = Resource::compute;
  std::array<double, 6> resource_seconds{};  ///< work / rate of each
  std::array<double, 7> lane_busy{};         ///< busy fraction of each lane kind (rank 0) in steady state
  Timeline timeline;                         ///< last simulated iteration
};

/// Seconds the op takes alone.
double op_seconds(const StepPlan& plan, const Op& op, const HardwareProfile& hw);

/// Simulate `iterations` (cyclic plans: at least 3) with lanes in order, waits, windowed drives as one server with
/// shared read/write bandwidth, and fair slowdown of ops that share cores or memory bandwidth.
Simulation simulate(const StepPlan& plan, const HardwareProfile& hw, int iterations = 3);

/// The time bound alone, without simulating.
double time_bound(const StepPlan& plan, const HardwareProfile& hw, Resource* bottleneck = nullptr,
                  std::array<double, 6>* seconds = nullptr);

}  // namespace sluice
