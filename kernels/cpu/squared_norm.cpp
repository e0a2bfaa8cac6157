#include "sluice/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/squared_norm.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "hwy/highway.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_SQUARED_NORM_LAYOUT
#define SLUICE_KERNELS_CPU_SQUARED_NORM_LAYOUT
/// Element i of a block goes to partial sum i % partial_sums on every target; then the partial sums are added in order.
constexpr std::int64_t partial_sums = 32;
constexpr std::int64_t norm_block = 4096;
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sum of squares of up to norm_block elements. The square of a float is exact in double, so it does not matter
/// whether a target fuses the addition.
double squared_norm_block(const float* x, std::int64_t n) {
  using D = hn::CappedTag<double, 8>;
  constexpr D d;
  constexpr hn::Rebind<float, D> df;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  double sums[partial_sums] = {};
  const std::int64_t whole = n / partial_sums * partial_sums;
  for (std::int64_t lane = 0; lane < partial_sums; lane += 4 * step) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (std::int64_t i = lane; i < whole; i += partial_sums) {
      const auto x0 = hn::PromoteTo(d, hn::LoadU(df, x + i)), x1 = hn::PromoteTo(d, hn::LoadU(df, x + i + step));
      const auto x2 = hn::PromoteTo(d, hn::LoadU(df, x + i + 2 * step));
      const auto x3 = hn::PromoteTo(d, hn::LoadU(df, x + i + 3 * step));
      s0 = hn::MulAdd(x0, x0, s0);
      s1 = hn::MulAdd(x1, x1, s1);
      s2 = hn::MulAdd(x2, x2, s2);
      s3 = hn::MulAdd(x3, x3, s3);
    }
    hn::StoreU(s0, d, sums + lane);
    hn::StoreU(s1, d, sums + lane + step);
    hn::StoreU(s2, d, sums + lane + 2 * step);
    hn::StoreU(s3, d, sums + lane + 3 * step);
  }
  for (std::int64_t i = whole; i < n; ++i) sums[i - whole] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {
HWY_EXPORT(squared_norm_block);

void add_blocks_of_squares(const float* x, std::int64_t numel, double* sum) {
  for (std::int64_t i = 0; i < numel; i += norm_block)
    *sum += HWY_DYNAMIC_DISPATCH(squared_norm_block)(x + i, std::min(norm_block, numel - i));
}
}  // namespace
}  // namespace sluice::kernels

namespace sluice {
void add_squared_norm(const float* x, std::int64_t numel, double* sum) {
  kernels::add_blocks_of_squares(x, numel, sum);
}
}  // namespace sluice
#endif
