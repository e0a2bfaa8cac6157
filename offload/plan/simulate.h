// A discrete-event simulation of a plan on a measured machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
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
enum class Resource : std::uint8_t { compute, cores, memory, drive, link_down, link_up, network };
constexpr std::array<const char*, 7> resource_names{"compute", "cores", "memory", "nvme", "h2d", "d2h", "network"};
using ResourceSeconds = std::array<double, resource_names.size()>;

struct Simulation {
  double step_seconds = 0;   ///< steady state: time between the ends of consecutive iterations of a cyclic plan
  double end_seconds = 0;    ///< when the last simulated iteration ends, from the start of the first
  double bound_seconds = 0;  ///< the time law: largest over resources of the step's work / rate
  /// Sum over passes of each pass's largest resource. A pass is a maximal run, in program order, of compute
  /// ops of one unit in one direction; other ops belong to the pass during which they are listed (the compute op before
  /// them, or the first one).
  double pass_bound_seconds = 0;
  Resource bottleneck = Resource::compute;
  ResourceSeconds resource_seconds{};                 ///< work / rate of each
  std::array<double, lane_names.size()> lane_busy{};  ///< busy fraction of each lane kind in steady state
  Timeline timeline;                                  ///< last simulated iteration, in program order
};

/// Seconds the op takes alone: compute ops as measured under their cost key, else FLOP at the best matmul rate; the
/// others from bytes or elements and the profile's rates.
double op_seconds(const StepPlan& plan, const Op& op, const HardwareProfile& hw);

/// Simulate `iterations` (cyclic plans: at least 3, a few more where step times have not settled, and those after them
/// as far as they overlap) with lanes in order, waits and collectives. Never faster than the bound: work and rates are
/// the same. A windowed drive lane is one server at the full rate; reading and writing at once share the
/// mixed rate, and so do the two directions of a GPU's link. The other ranks of the machine (hw.ranks) do the same at
/// the same time, and nobody waits in a collective or for a message. Cores, memory bandwidth and links are shared
/// max-min fairly (cores: among threads); an op runs as slowly as the scarcest of what it uses. The plan must be free
/// of deadlocks.
Simulation simulate(const StepPlan& plan, const HardwareProfile& hw, int iterations = 3);

/// Ranks that do not run alike, as the stages of a pipeline, one of each kind, side by side.
struct WorldSimulation {
  double step_seconds = 0;  ///< as in Simulation, until the last of them has ended
  double end_seconds = 0;
  double bound_seconds = 0;
  std::vector<Simulation> members;  ///< step_seconds are the world's
};

/// As simulate(), where collectives of members, and messages between them, begin when all of their members are there. A
/// machine has hw.ranks neighbouring ranks: those that are no members do as the members of their machine do, in equal
/// parts. The plans must reach the end together (check_world).
WorldSimulation simulate_world(std::span<const StepPlan* const> members, const HardwareProfile& hw, int iterations = 3);
WorldSimulation simulate_world(std::span<const StepPlan> members, const HardwareProfile& hw, int iterations = 3);

/// The time bound alone, without simulating.
double time_bound(const StepPlan& plan, const HardwareProfile& hw, Resource* bottleneck = nullptr,
                  ResourceSeconds* seconds = nullptr);

}  // namespace sluice
