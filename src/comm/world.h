// All ranks of a run: those of this process, and the processes that have the others.
//
// Ranks meet in two ways. In a step their executors call collectives through Communicators, on lanes of their own.
// Between steps the threads that drive the processes exchange what they decide and what states they hold: those calls
// come from one thread of each process, in the same order in all of them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/run/communicator.h"

namespace sluice {

/// What is measured. all_gather, all_reduce and broadcast (of rank 0) are in place in `full`; reduce_scatter leaves its
/// part in `other`; all_to_all and exchange (to the next rank, from the one before) go from `full` to `other`.
enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, exchange };
constexpr std::array<const char*, 6> collective_names{"all_gather", "reduce_scatter", "all_reduce",
                                                      "all_to_all", "broadcast",      "exchange"};

/// It outlives who uses it.
class World {
 public:
  virtual ~World() = default;
  virtual RankId ranks() const = 0;
  virtual RankRange here() const = 0;        ///< of this process
  virtual RankId ranks_of_node() const = 0;  ///< that share this machine's memory, cores and drives
  /// Which of those a rank of this process is.
  virtual RankId place_on_node(RankId rank) const = 0;
  virtual std::size_t processes() const = 0;
  virtual Communicator& communicator(RankId rank) = 0;  ///< of a rank of this process
  virtual bool shares_memory() const = 0;  ///< else sums over ranks need room for what arrives (sluice/exchange.h)

  /// Every process gives a text, and gets those of all, in the order of their ranks. Errors: fault.
  virtual Result<std::vector<std::string>> exchange(std::string_view own) = 0;
  /// Bytes for the process that has rank `to`, and from the one that has rank `from`, which are others than this one.
  virtual Status send(RankId to, std::span<const std::byte> data) = 0;
  virtual Status receive(RankId from, std::span<std::byte> data) = 0;

  /// What the transport's own library has for the same bytes, among all ranks: to measure against. In one process a
  /// copy of as many bytes as would arrive. `full` and `other` are as Collective says.
  virtual Status native(Collective collective, RankId rank, std::span<float> full, std::span<float> other) = 0;

  /// Of a collective, from the next one on: who waits longer fails, though all may be alive.
  virtual void set_deadline(std::chrono::seconds deadline) = 0;
  /// Nothing that waits for others succeeds any more.
  virtual bool has_lost_a_process() const { return false; }
  /// All processes: they have agreed that they are done with each other. A world that ends otherwise is a process that
  /// is lost to the others.
  virtual void end() {}

  /// Of all processes one measures, searches, prints, and writes what there is once: that of rank 0.
  bool leads() const { return here().first == 0; }
  bool is_alone() const { return processes() == 1; }
};

/// Success where every process succeeded. Else the same error on all: that of the first process which failed for a
/// reason of its own and was not merely cancelled; where it is another's, with its rank. Where a process is lost each
/// has its own error.
Status agree(World& world, const Status& own);
/// The leader's value, on all.
Result<std::string> from_leader(World& world, std::string_view own);
/// Element by element over processes, wrapping around.
Status add_up(World& world, std::span<std::uint64_t> values);

/// bad_request naming who has another value of `what`, on all.
Status check_alike(World& world, const std::string& what, std::uint64_t own);

/// The leader does it alone. On all: whether it succeeded.
Status leader_does(World& world, const std::function<Status()>& work);

}  // namespace sluice
