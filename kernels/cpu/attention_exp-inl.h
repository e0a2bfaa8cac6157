// The exponential of softmax, compiled once per SIMD target.

#if defined(SLUICE_KERNELS_ATTENTION_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_ATTENTION_EXP_INL_H_
#undef SLUICE_KERNELS_ATTENTION_EXP_INL_H_
#else
#define SLUICE_KERNELS_ATTENTION_EXP_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// exp(x), within 1 ulp; zero below about -104. NaN stays NaN (hwy's Exp would make it zero and hide a diverged step).
template <class D, class V>
HWY_INLINE V exp_or_nan(D d, V x) {
  return hwy::HWY_NAMESPACE::IfThenElse(hwy::HWY_NAMESPACE::IsNaN(x), x, hwy::HWY_NAMESPACE::Exp(d, x));
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
