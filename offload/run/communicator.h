// Collectives as a rank's executor sees them. Implementations, under src/comm: threads of one process, and
// processes that MPI connects.
//
// Every call is blocking, has a deadline and is woken by cancel(). On each channel the ranks meet in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/status.h"
#include "sluice/topology.h"

namespace sluice {

/// One rank's end. A channel is an index of the groups it was prepared with; meetings on different channels do not
/// disturb each other. Calls on one channel come from one thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankId rank() const = 0;
  virtual RankId ranks() const = 0;

  /// Once before the threads of a plan start, when no collective of this rank is under way: forgets an earlier
  /// cancel(). All ranks call it, in any order, as often as each other. Errors: bad_request where the topology is not
  /// of these ranks.
  virtual Status prepare(const Topology& topology, std::span<const AxisSet> groups) = 0;

  /// `full` is members x part bytes; the caller's own part lies at its position and is filled; the others' arrive.
  virtual Status all_gather(std::int32_t channel, std::span<std::byte> full) = 0;

  /// part[i] = sum over members of full_m[position * part.size() + i], in pairs of neighbours, and their sums in pairs,
  /// while there is an even number of them, and then one after the other; full has members x part elements. `part` may
  /// be the caller's own part of `full`. `exchange` is host memory for what arrives, where ranks do not share theirs
  /// (sluice/exchange.h).
  virtual Status reduce_scatter(std::int32_t channel, std::span<const float> full, std::span<float> part,
                                std::span<std::byte> exchange) = 0;

  /// Small: every element of `values` becomes the sum over the members. Integers, so that no order is meant.
  virtual Status sum(std::int32_t channel, std::span<std::int64_t> values) = 0;

  /// Wakes everyone who waits, on every rank; calls fail with `reason` until prepare(). From any thread.
  virtual void cancel(const std::string& reason) = 0;
};

}  // namespace sluice
