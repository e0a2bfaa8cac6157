#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/gemm_team.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy_parts.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

#include "kernels/cpu/cross_entropy_row-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_CROSS_ENTROPY_PARTS_TOTAL
#define SLUICE_KERNELS_CPU_CROSS_ENTROPY_PARTS_TOTAL
/// Of a token, over the columns of all members.
struct VocabularyTotal {
  double sum;  ///< of exp(x - largest)
  double hit;  ///< the target's logit - largest
  float largest;
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// At least -FLT_MAX is taken from the logits, so that a member whose words are all impossible (-infinity) adds zero.
VocabularyPart part_of_row(const float* x, std::int32_t target, std::int64_t vocabulary) {
  float largest = vocabulary > 0 ? row_maximum(x, vocabulary) : -FLT_MAX;
  if (largest < -FLT_MAX) largest = -FLT_MAX;  // leaves NaN
  return {exponentials(x, largest, vocabulary, nullptr), largest, target >= 0 ? x[target] : 0.0f};
}

void gradient_of_row_of_parts(float* x, const VocabularyTotal& total, std::int32_t target, std::int64_t vocabulary,
                              float grad_scale) {
  exponentials(x, total.largest, vocabulary, x);
  exponentials_to_gradient(x, total.sum, total.hit, target, vocabulary, grad_scale);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(part_of_row);
HWY_EXPORT(gradient_of_row_of_parts);

/// Members in order, from the first on.
VocabularyTotal total_of(const VocabularyPart* parts, std::int64_t members, std::int64_t stride) {
  float largest = parts[0].largest;
  for (std::int64_t m = 1; m < members; ++m) largest = std::max(largest, parts[m * stride].largest);
  const auto shift = static_cast<double>(largest);
  double sum = parts[0].sum * std::exp(static_cast<double>(parts[0].largest) - shift);
  auto target = static_cast<double>(parts[0].target);
  for (std::int64_t m = 1; m < members; ++m) {
    const VocabularyPart& part = parts[m * stride];
    sum += part.sum * std::exp(static_cast<double>(part.largest) - shift);
    target += static_cast<double>(part.target);
  }
  return {sum, target - shift, largest};
}

float loss_of(const VocabularyTotal& total) { return static_cast<float>(std::log(total.sum) - total.hit); }

}  // namespace

void cross_entropy_part(const float* logits, std::int64_t ld, const std::int32_t* targets, std::int64_t tokens,
                        std::int64_t vocabulary, VocabularyPart* parts) {
  const auto one_token = [&](std::int64_t t) {
    const float* row = vocabulary > 0 ? logits + t * ld : nullptr;
    parts[t] =
        is_ignored(targets[t]) ? VocabularyPart{} : HWY_DYNAMIC_DISPATCH(part_of_row)(row, targets[t], vocabulary);
  };
  with_team(omp_get_max_threads(), [&](const Team& team) { team.share(tokens, one_token); });
}

void cross_entropy_of_parts_forward_backward(float* logits, std::int64_t ld, const std::int32_t* targets,
                                             std::int64_t tokens, std::int64_t vocabulary, const VocabularyPart* parts,
                                             std::int64_t members, std::int64_t stride, float grad_scale, float* loss) {
  const auto one_token = [&](std::int64_t t) {
    float* row = vocabulary > 0 ? logits + t * ld : nullptr;
    if (is_ignored(targets[t])) {
      loss[t] = 0;
      std::fill_n(row, vocabulary, 0.0f);
      return;
    }
    const VocabularyTotal total = total_of(parts + t, members, stride);
    loss[t] = loss_of(total);
    HWY_DYNAMIC_DISPATCH(gradient_of_row_of_parts)(row, total, targets[t], vocabulary, grad_scale);
  };
  with_team(omp_get_max_threads(), [&](const Team& team) { team.share(tokens, one_token); });
}

void cross_entropy_of_parts_forward(const std::int32_t* targets, std::int64_t tokens, const VocabularyPart* parts,
                                    std::int64_t members, std::int64_t stride, float* loss) {
  for (std::int64_t t = 0; t < tokens; ++t)
    loss[t] = is_ignored(targets[t]) ? 0.0f : loss_of(total_of(parts + t, members, stride));
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
