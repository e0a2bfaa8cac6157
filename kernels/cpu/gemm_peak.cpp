#include "kernels/cpu/gemm_peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_peak.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// 12 chains: enough for two multipliers of latency 4 or 5, and few enough for 16 registers.
constexpr int chains = 12;

/// `start` keeps the compiler from computing the result itself.
float multiply_add_chains(std::int64_t rounds, float start) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sum[chains];
  for (auto& s : sum) s = hn::Set(d, start);
  const auto factor = hn::Set(d, 0.5f), addend = hn::Set(d, start);
  for (std::int64_t i = 0; i < rounds; ++i)
    for (auto& s : sum) s = hn::MulAdd(s, factor, addend);
  for (int i = 1; i < chains; ++i) sum[0] = hn::Add(sum[0], sum[i]);
  return hn::GetLane(sum[0]);
}

double flop_per_round() { return 2.0 * chains * static_cast<double>(hn::Lanes(hn::ScalableTag<float>())); }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(multiply_add_chains);
HWY_EXPORT(flop_per_round);

double multiply_add_burst(std::int64_t rounds) {
  const float unused = HWY_DYNAMIC_DISPATCH(multiply_add_chains)(rounds, 1.0f);
  const double flop = static_cast<double>(rounds) * HWY_DYNAMIC_DISPATCH(flop_per_round)();
  return unused < 0 ? 0 : flop;  // a sum of positive numbers: the comparison keeps it from being optimised away
}

}  // namespace sluice::kernels
#endif  // HWY_ONCE
