// What the kernel sweeps share: storage types, seeded data, SIMD targets, thread counts.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "sluice/dtype.h"
#include "sluice/random.h"

namespace sluice::test {

inline double value(float v) { return v; }
inline double value(bf16 v) { return to_float(v); }
template <class T>
T stored(double v) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(static_cast<float>(v));
  else
    return static_cast<float>(v);
}
/// Relative rounding error of storing as T.
template <class T>
constexpr double storage_epsilon = std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-24;

template <class T>
std::vector<T> normal(std::int64_t n, std::uint64_t seed, double scale = 1) {
  std::vector<T> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = stored<T>(scale * philox_normal(seed, i, 0));
  return out;
}

template <class T>
void expect_near(double want, T got, double relative, double absolute, const char* what, std::int64_t at) {
  const double slack = absolute + std::abs(want) * (relative + storage_epsilon<T>);
  ASSERT_LE(std::abs(want - value(got)), slack) << what << " at " << at << ": want " << want << " got " << value(got);
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Runs f with 1, 2 and 3 threads in the team, and leaves 2.
template <class F>
void with_thread_counts(const F& f) {
  for (int threads : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    kernels::set_compute_threads(threads);
    f();
  }
  kernels::set_compute_threads(2);
}

/// Runs f with dispatch forced to each SIMD target that this CPU supports.
template <class F>
void with_targets(const F& f) {
  hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

/// Lengths around every vector width, and some that are split over threads.
inline std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 0; n <= 67; ++n) all.push_back(n);
  for (std::int64_t n : {255, 1000, 4096, 40001}) all.push_back(n);
  return all;
}

template <class T>
class Kernel : public testing::Test {};
using Storage = testing::Types<float, bf16>;

}  // namespace sluice::test
