#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

#include "kernels/cpu/cross_entropy_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

float loss_of_row(const float* x, std::int32_t target, std::int64_t vocabulary) {
  const float largest = row_maximum(x, vocabulary);
  return static_cast<float>(std::log(exponentials(x, largest, vocabulary, nullptr)) -
                            (static_cast<double>(x[target]) - static_cast<double>(largest)));
}

float gradient_of_row(float* x, std::int32_t target, std::int64_t vocabulary, float grad_scale) {
  const float largest = row_maximum(x, vocabulary);
  const double hit = static_cast<double>(x[target]) - static_cast<double>(largest);
  const double sum = exponentials(x, largest, vocabulary, x);
  exponentials_to_gradient(x, sum, hit, target, vocabulary, grad_scale);
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
