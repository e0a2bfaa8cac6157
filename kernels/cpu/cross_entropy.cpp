#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

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

float loss_of_row(const float* x, std::int32_t target, std::int64_t vocabulary) {
  const float largest = row_maximum(x, vocabulary);
  return static_cast<float>(std::log(exponentials(x, largest, vocabulary, nullptr)) -
                            (static_cast<double>(x[target]) - static_cast<double>(largest)));
}

float gradient_of_row(float* x, std::int32_t target, std::int64_t vocabulary, float grad_scale) {
  const float largest = row_maximum(x, vocabulary);
  const double hit = static_cast<double>(x[target]) - static_cast<double>(largest);
  const double sum = exponentials(x, largest, vocabulary, x);
  multiply_row(x, static_cast<float>(static_cast<double>(grad_scale) / sum), vocabulary);
  // 1 - p of the target is the sum over the others: exact also where p is close to 1.
  x[target] = static_cast<float>(std::expm1(hit - std::log(sum)) * static_cast<double>(grad_scale));
  return static_cast<float>(std::log(sum) - hit);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(loss_of_row);
HWY_EXPORT(gradient_of_row);

void cross_entropy_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                                    std::int64_t vocabulary, float grad_scale, float* loss) {
  const auto one_token = [&](std::int64_t t) {
    float* row = logits + t * ld;
    if (targets[t] >= 0) {
      loss[t] = HWY_DYNAMIC_DISPATCH(gradient_of_row)(row, targets[t], vocabulary, grad_scale);
    } else {
      loss[t] = 0;
      std::fill(row, row + vocabulary, 0.0f);
    }
  };
  with_team(omp_get_max_threads(), [&](const Team& team) { team.share(tokens, one_token); });
}

void cross_entropy_forward(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                           std::int64_t vocabulary, float* loss) {
  const auto one_token = [&](std::int64_t t) {
    loss[t] = targets[t] >= 0 ? HWY_DYNAMIC_DISPATCH(loss_of_row)(logits + t * ld, targets[t], vocabulary) : 0.0f;
  };
  with_team(omp_get_max_threads(), [&](const Team& team) { team.share(tokens, one_token); });
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
