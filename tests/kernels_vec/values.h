// What the kernel sweeps of every device share: storage types, seeded data, comparison, lengths.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

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

/// Lengths around every vector width, and some that are split over threads.
inline std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 0; n <= 67; ++n) all.push_back(n);
  for (std::int64_t n : {255, 1000, 4096, 40001}) all.push_back(n);
  return all;
}

using Storage = testing::Types<float, bf16>;

}  // namespace sluice::test
