#include "offload/run/progress.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice {
namespace {

// A lane that waits usually waits for milliseconds, on cores that compute needs: it looks a little longer and then
// sleeps.
constexpr int looks_before_sleep = 40;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

using Signal = std::atomic<std::uint32_t>;
static_assert(sizeof(Signal) == sizeof(std::uint32_t) && Signal::is_always_lock_free);

/// std::atomic::wait of libstdc++ gives its core away four times before it sleeps: where lanes are more than cores each
/// time is a switch to another lane that does the same. Comes back also for no reason.
void sleep_while(Signal& signal, std::uint32_t seen) {
  syscall(SYS_futex, &signal, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void wake_one(Signal& signal) { syscall(SYS_futex, &signal, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace

Progress::Progress(std::size_t sources, std::size_t waiters)
    : done_(sources), waiters_(waiters), wanted_(sources * waiters) {
  for (auto& each : wanted_) each.store(not_waiting, std::memory_order_relaxed);
}

void Progress::set_waker(std::size_t waiter, Waker waker, void* context) {
  // Sequentially consistent like halt: it sees the waker, or the waiter sees that it is halted.
  waiters_[waiter].context = context;
  waiters_[waiter].wake.store(waker, std::memory_order_seq_cst);
}

void Progress::wake(Waiter& waiter) {
  waiter.signal.fetch_add(1, std::memory_order_acq_rel);
  if (const Waker how = waiter.wake.load(std::memory_order_seq_cst); how != nullptr)
    how(waiter.context);
  else
    wake_one(waiter.signal);
}

void Progress::publish(std::size_t source, std::uint64_t count) {
  // Sequentially consistent on both sides (see arm): either we see the threshold or the waiter sees the count.
  done_[source].value.store(count, std::memory_order_seq_cst);
  for (std::size_t w = 0; w < waiters_.size(); ++w) {
    std::atomic<std::uint64_t>& threshold = wanted(source, w);
    if (threshold.load(std::memory_order_seq_cst) > count) continue;
    if (threshold.exchange(not_waiting, std::memory_order_acq_rel) != not_waiting) wake(waiters_[w]);
  }
}

bool Progress::arm(std::size_t waiter, std::size_t source, std::uint64_t threshold) {
  Waiter& self = waiters_[waiter];
  if (self.armed != source) wanted(self.armed, waiter).store(not_waiting, std::memory_order_relaxed);
  self.armed = source;
  std::atomic<std::uint64_t>& mine = wanted(source, waiter);
  mine.store(threshold, std::memory_order_seq_cst);
  if (done_[source].value.load(std::memory_order_seq_cst) < threshold) return false;
  mine.store(not_waiting, std::memory_order_relaxed);
  return true;
}

bool Progress::await(std::size_t waiter, std::size_t source, std::uint64_t threshold) {
  for (int look = 0; look < looks_before_sleep; ++look) {
    if (count(source) >= threshold) return true;
    relax();
  }
  Waiter& self = waiters_[waiter];
  while (true) {
    const std::uint32_t seen = self.signal.load(std::memory_order_acquire);
    if (arm(waiter, source, threshold)) return true;
    if (halted()) return false;
    sleep_while(self.signal, seen);
  }
}

void Progress::halt() {
  halted_.store(true, std::memory_order_seq_cst);
  for (Waiter& waiter : waiters_) wake(waiter);
}

}  // namespace sluice
