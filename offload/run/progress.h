// How far every lane has come, and who sleeps until it comes further.
//
// Completions of a lane become visible in order, so one counter per lane says which of its ops have finished: an op is
// waited for as "that lane has finished this many ops". A sleeper announces its threshold beside the counter and is
// woken once, when it is reached: a completion that nobody waits for costs no system call, and stop wakes everyone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {

/// Sources are counted, waiters sleep. Each source is published by one thread at a time, each waiter used by one.
class Progress {
 public:
  Progress(std::size_t sources, std::size_t waiters);

  /// Set the source's count (never lower than before) and wake those who waited for it.
  void publish(std::size_t source, std::uint64_t count);
  std::uint64_t count(std::size_t source) const { return done_[source].value.load(std::memory_order_acquire); }

  /// Sleep until count(source) >= threshold. False if halted first.
  bool await(std::size_t waiter, std::size_t source, std::uint64_t threshold);

  /// For waiters that sleep elsewhere (a drive lane in its queue): true if the threshold is reached; if not, their
  /// waker is called once when it is. Arming again replaces the earlier threshold.
  bool arm(std::size_t waiter, std::size_t source, std::uint64_t threshold);
  using Waker = void (*)(void*);
  void set_waker(std::size_t waiter, Waker waker, void* context);  ///< once, before that waiter runs

  void halt();  ///< wakes every waiter, now and for good; any thread
  bool halted() const { return halted_.load(std::memory_order_seq_cst); }

 private:
  static constexpr std::uint64_t not_waiting = std::numeric_limits<std::uint64_t>::max();
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> value{0};
  };
  struct alignas(64) Waiter {
    std::atomic<std::uint32_t> signal{0};
    std::size_t armed = 0;  ///< the source
    std::atomic<Waker> wake{nullptr};
    void* context = nullptr;
  };
  std::atomic<std::uint64_t>& wanted(std::size_t source, std::size_t waiter) {
    return wanted_[source * waiters_.size() + waiter];
  }
  void wake(Waiter& waiter);

  std::vector<Counter> done_;
  std::vector<Waiter> waiters_;
  std::vector<std::atomic<std::uint64_t>> wanted_;  ///< [source][waiter] threshold
  std::atomic<bool> halted_{false};
};

}  // namespace sluice
