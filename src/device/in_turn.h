// Measuring several things that are to be compared: all of them in every round, so that what disturbs the machine for a
// while disturbs them alike, and the median over rounds.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace sluice {

constexpr int in_turn_rounds = 5;

struct Passes {
  double per_second = 0;  ///< median over rounds
  double spread = 0;      ///< (most - fewest) / median over rounds
};

/// Called as pass(thread), by all threads at once. Must not throw.
using ThreadPass = std::function<void(int)>;

/// One Passes per pass, each measured for about `seconds` in all, by `threads` threads that start and end together and
/// take over the calling thread's affinity. At least one pass per round, after one that warms up.
std::vector<Passes> measure_in_turn(std::span<const ThreadPass> passes, int threads, double seconds);

}  // namespace sluice
