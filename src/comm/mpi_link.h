// What all that speaks MPI shares: waiting without a core, and errors in words.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice {

/// A message is at most so long: MPI counts in int.
constexpr std::size_t message_bytes_max = std::size_t{1} << 30;

/// fault with MPI's own words, where `code` says so.
Status mpi_status(int code, const std::string& what);

/// Pauses between questions. While messages arrive, a moment; else a 32nd of the time waited so far, between 20
/// microseconds and a millisecond, so that who waits uses no core and wakes soon.
class Pause {
 public:
  using Clock = std::chrono::steady_clock;
  void moved() { last_ = Clock::now(); }
  void rest();
  /// Whether the next rest() sleeps.
  bool is_idle() const { return Clock::now() - last_ > busy_for; }
  Clock::duration waited() const { return Clock::now() - began_; }

 private:
  static constexpr std::chrono::microseconds busy_for{200};
  Clock::time_point began_ = Clock::now(), last_ = began_;
};

/// Raised once, when a process is lost: whoever waits for any process then waits in vain, and MPI is asked nothing more,
/// since it may still write into memory that is gone by then.
class Alarm {
 public:
  void raise(const std::string& text);
  bool is_raised() const { return raised_.load(std::memory_order_acquire); }
  /// fault with the text once it is raised.
  Status check() const;

 private:
  std::atomic<bool> raised_{false};
  std::mutex mutex_;  ///< of who raises it
  std::string text_;  ///< written before raised_
};

/// Messages under way: sends and receives, each with the rank at its other end.
class Messages {
 public:
  explicit Messages(Alarm& alarm) : alarm_(alarm) {}
  ~Messages() { abandon(); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  Status send(MPI_Comm comm, int to, int tag, std::span<const std::byte> data);
  Status receive(MPI_Comm comm, int from, int tag, std::span<std::byte> data);
  /// A collective of MPI's own: once begun it can not be called off, so that to abandon it raises the alarm.
  void join(MPI_Request request, int peer) { add(request, peer, Kind::collective); }
  /// One that a probe has matched.
  Status receive(MPI_Message& message, int from, std::span<std::byte> data);
  /// Until all have ended. `interrupted`, which may be empty, is asked before every sleep and ends the wait with its
  /// error. Errors: fault naming a peer, after the deadline or when a process is lost, or in MPI's words.
  using Interrupted = std::function<Status()>;
  Status finish(std::chrono::seconds deadline, const Interrupted& interrupted);
  bool is_empty() const { return requests_.empty(); }
  /// Nothing more arrives in the buffers of those that have not ended; where that can not be had, the alarm is raised.
  void abandon();

 private:
  enum class Kind : std::uint8_t { send, receive, collective };
  void add(MPI_Request request, int peer, Kind kind, std::size_t bytes = 0);
  Status check_arrived(int ended) const;
  void clear();
  int awaited() const;  ///< a rank that is waited for
  Status check_alarm(int peer) const;
  Alarm& alarm_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<Kind> kinds_;
  std::vector<std::size_t> bytes_;  ///< of receives
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace sluice
