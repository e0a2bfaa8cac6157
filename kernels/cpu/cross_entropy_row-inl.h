// Passes over a row of logits, shared by the cross-entropies. Compiled once per SIMD target: include it after
// hwy/foreach_target.h (that is why the guard flips).
#if defined(SLUICE_KERNELS_CPU_CROSS_ENTROPY_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_CROSS_ENTROPY_ROW_INL_H_
#undef SLUICE_KERNELS_CPU_CROSS_ENTROPY_ROW_INL_H_
#else
#define SLUICE_KERNELS_CPU_CROSS_ENTROPY_ROW_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;

/// Sums of exponentials restart after this many elements and are added up in double: a vocabulary is long.
constexpr std::int64_t sum_block = 4096;

HWY_INLINE float row_maximum(const float* x, std::int64_t n) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float largest = x[0];
  std::int64_t i = 0;
  if (n >= lanes) {
    FloatVec most = hn::LoadU(d, x);
    for (i = lanes; i + lanes <= n; i += lanes) most = hn::Max(most, hn::LoadU(d, x + i));
    largest = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  return largest;
}

/// Sum of exp(x - shift) over a row. With `keep`, the exponentials are written there (it may be x).
HWY_INLINE double exponentials(const float* x, float shift, std::int64_t n, float* keep) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const FloatVec less = hn::Set(d, shift);
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += sum_block) {
    const std::int64_t end = std::min(n, begin + sum_block);
    FloatVec sum = hn::Zero(d);
    std::int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const FloatVec e = exp_or_nan(d, hn::Sub(hn::LoadU(d, x + i), less));
      if (keep != nullptr) hn::StoreU(e, d, keep + i);
      sum = hn::Add(sum, e);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    for (; i < end; ++i) {
      const float e = std::exp(x[i] - shift);
      if (keep != nullptr) keep[i] = e;
      total += static_cast<double>(e);
    }
  }
  return total;
}

HWY_INLINE void multiply_row(float* x, float factor, std::int64_t n) {
  const FloatTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
  for (; i < n; ++i) x[i] *= factor;
}

/// Exponentials and their row's sum become the gradient. `target`: its column, where the row has it (else negative),
/// and `hit` its logit less what the exponentials are shifted by.
HWY_INLINE void exponentials_to_gradient(float* x, double sum, double hit, std::int32_t target, std::int64_t n,
                                         float grad_scale) {
  multiply_row(x, static_cast<float>(static_cast<double>(grad_scale) / sum), n);
  // 1 - p of the target is the sum over the others: exact also where p is close to 1.
  if (target >= 0) x[target] = static_cast<float>(std::expm1(hit - std::log(sum)) * static_cast<double>(grad_scale));
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
