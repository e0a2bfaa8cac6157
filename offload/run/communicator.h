// Collectives as a rank's executor sees them. Implementations, under src/comm: threads of one process, and
// processes that MPI connects.
//
// Every call is blocking, has a deadline and is woken by cancel(). On each channel the ranks meet in the same order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sluice/plan.h"
#include "sluice/status.h"
#include "sluice/topology.h"

namespace sluice {

/// A message for the member of a group at position `to`; and room for one of the member at `from`, of the same size.
struct Outgoing {
  std::size_t to = 0;
  std::span<const std::byte> data;
};
struct Incoming {
  std::size_t from = 0;
  std::span<std::byte> data;
};

/// One rank's end. A channel is an index of the groups it was prepared with; meetings on different channels do not
/// disturb each other. Calls on one channel come from one thread at a time; on a channel of messages alone one thread
/// may send while another receives.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankId rank() const = 0;
  virtual RankId ranks() const = 0;

  /// Once before the threads of a plan start, when no collective of this rank is under way: forgets an earlier
  /// cancel(). All ranks call it, in any order, as often as each other; where sums are the library's own, which needs
  /// to be known here, it returns when all have called it. Errors: bad_request where the topology is not of these
  /// ranks.
  virtual Status prepare(const Topology& topology, std::span<const AxisSet> groups, bool sums_natively = false) = 0;

  /// `full` is members x part bytes; the caller's own part lies at its position and is filled; the others' arrive.
  virtual Status all_gather(std::int32_t channel, std::span<std::byte> full) = 0;

  /// part[i] = sum over members of full_m[position * part.size() + i], as `sums` says; full has members x part
  /// elements. `part` may be the caller's own part of `full`. `room` is host memory for what arrives, where ranks do
  /// not share theirs (sluice/exchange.h).
  virtual Status reduce_scatter(std::int32_t channel, std::span<const float> full, std::span<float> part,
                                std::span<std::byte> room, RankSums sums) = 0;

  /// Small: every element of `values` becomes the sum over the members. Integers, so that no order is meant.
  virtual Status sum(std::int32_t channel, std::span<std::int64_t> values) = 0;

  /// Sends and receives at the same time, so that no order among the members can lead to a standstill. What one member
  /// sends another on a channel arrives in the order in which it was sent. Errors: fault where sizes differ.
  virtual Status exchange(std::int32_t channel, std::span<const Outgoing> out, std::span<const Incoming> in) = 0;

  /// For who waits for other ranks by other means (DeviceCollectives): the error that a collective would end with which
  /// has waited for so long, if any. From any thread, while the session lasts.
  virtual Status still_waits(std::chrono::duration<double> waited) = 0;

  /// Of a channel: how many ranks meet there, and which of them this one is.
  virtual std::size_t members(std::int32_t channel) const = 0;
  virtual std::size_t position(std::int32_t channel) const = 0;

  // Made of those.
  /// Both are pieces x members x part bytes: of each piece, part m of `from` goes to member m, and part m of `to` comes
  /// from it.
  Status all_to_all(std::int32_t channel, std::span<const std::byte> from, std::span<std::byte> to,
                    std::size_t pieces = 1);
  /// `from` goes to the next member, the last one's to the first, and `to` is what the one before has sent.
  Status ring_shift(std::int32_t channel, std::span<const std::byte> from, std::span<std::byte> to);
  /// The root's data, on all members.
  Status broadcast(std::int32_t channel, std::size_t root, std::span<std::byte> data);
  /// full[i] = sum over members of full_m[i], on all of them; full has members x part elements.
  Status all_reduce(std::int32_t channel, std::span<float> full, std::span<std::byte> room, RankSums sums);
  Status send(std::int32_t channel, std::size_t to, std::span<const std::byte> data);
  Status receive(std::int32_t channel, std::size_t from, std::span<std::byte> data);

  /// Wakes everyone who waits, on every rank; calls fail with `reason` until prepare(). From any thread.
  virtual void cancel(const std::string& reason) = 0;
};

}  // namespace sluice
