// Independent pieces of work on all cores. Where ThreadSanitizer watches, plain threads do it: TBB's library is not built
// for it, and what TBB orders would look like races.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>
#else
#include <tbb/parallel_for.h>
#include <tbb/parallel_invoke.h>
#endif

namespace sluice {

/// f(0) ... f(count - 1), in any order and side by side. f does not throw.
template <class F>
void parallel_for(std::size_t count, const F& f) {
#if defined(__SANITIZE_THREAD__)
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min<std::size_t>(count, 4); ++t) others.emplace_back(work);
  work();
#else
  tbb::parallel_for(std::size_t{0}, count, f);
#endif
}

/// Both, side by side.
template <class A, class B>
void parallel_invoke(const A& a, const B& b) {
#if defined(__SANITIZE_THREAD__)
  const std::jthread other(a);
  b();
#else
  tbb::parallel_invoke(a, b);
#endif
}

}  // namespace sluice
