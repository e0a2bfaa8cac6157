// Teams as ThreadSanitizer can watch them: of libgomp it sees the threads and not the barriers, and takes everything
// that a team shares for a race. Slower, and only in builds under it.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace sluice::kernels {

class WatchedTeam {
 public:
  explicit WatchedTeam(int threads) : all_(threads) {}

  /// Whether the calling thread is of a team.
  static bool& is_inside() {
    thread_local bool inside = false;
    return inside;
  }

  /// body(thread) on each thread of the team.
  template <class F>
  void run(int threads, const F& body) {
    std::vector<std::jthread> others;
    const auto as_member = [&](int thread) {
      is_inside() = true;
      body(thread);
      is_inside() = false;
    };
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(as_member, thread);
    as_member(0);
  }

  /// As Team::share.
  template <class F>
  void share(std::int64_t n, const F& f) {
    for (std::int64_t i = next_.fetch_add(1); i < n; i = next_.fetch_add(1)) f(i);
    all_.arrive_and_wait();
    next_.store(0);
    all_.arrive_and_wait();
  }

 private:
  std::atomic<std::int64_t> next_{0};
  std::barrier<> all_;
};

}  // namespace sluice::kernels
