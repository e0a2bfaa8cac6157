// Dynamically shared loops on the calling thread's OpenMP team, without allocation.
//
// libgomp allocates a team for every parallel region of one thread, so those run without it.
#pragma once

#include <omp.h>

#include <cstdint>

#ifdef __SANITIZE_THREAD__
#include "kernels/cpu/watched_team.h"
#endif

namespace sluice::kernels {

#ifdef __SANITIZE_THREAD__

class Team {
 public:
  Team(WatchedTeam* team, int thread) : team_(team), thread_(thread) {}
  int thread() const { return thread_; }
  template <class F>
  void share(std::int64_t n, const F& f) const {
    if (team_ != nullptr) return team_->share(n, f);
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }

 private:
  WatchedTeam* team_;
  int thread_;
};

template <class F>
void with_team(int threads, const F& body) {
  if (threads <= 1 || WatchedTeam::is_inside()) return body(Team(nullptr, 0));
  WatchedTeam team(threads);
  team.run(threads, [&](int thread) { body(Team(&team, thread)); });
}

#else

class Team {
 public:
  explicit Team(bool serial) : serial_(serial) {}
  int thread() const { return serial_ ? 0 : omp_get_thread_num(); }

  /// f(i) for i in [0, n), one at a time to whoever is free. Every thread of the team calls this; all f are done when
  /// it returns.
  template <class F>
  void share(std::int64_t n, const F& f) const {
    if (serial_) {
      for (std::int64_t i = 0; i < n; ++i) f(i);
    } else {
#pragma omp for schedule(dynamic, 1)
      for (std::int64_t i = 0; i < n; ++i) f(i);
    }
  }

 private:
  bool serial_;
};

/// body(team) on each of `threads` threads; on the calling one alone inside a parallel region.
template <class F>
void with_team(int threads, const F& body) {
  if (threads <= 1 || omp_in_parallel()) {
    body(Team(true));
  } else {
#pragma omp parallel num_threads(threads)
    body(Team(false));
  }
}

#endif

}  // namespace sluice::kernels
