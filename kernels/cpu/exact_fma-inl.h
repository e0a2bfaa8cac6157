// exact_fma(a, b, c) = round(a * b + c), also on targets without the instruction. Compiled once per SIMD target.
#if defined(SLUICE_KERNELS_CPU_EXACT_FMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_EXACT_FMA_INL_H_
#undef SLUICE_KERNELS_CPU_EXACT_FMA_INL_H_
#else
#define SLUICE_KERNELS_CPU_EXACT_FMA_INL_H_
#endif

#include <cmath>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !HWY_NATIVE_FMA && HWY_TARGET != HWY_SCALAR
/// In double the product is exact and the sum is rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums", 2008), so that rounding once more to float gives what a single rounding would.
template <class DH, class VH = hn::Vec<DH>>
HWY_INLINE VH exact_fma_half(DH dh, VH a, VH b, VH c) {
  const hn::Rebind<double, DH> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto p = hn::Mul(hn::PromoteTo(d, a), hn::PromoteTo(d, b)), w = hn::PromoteTo(d, c);
  const auto s = hn::Add(p, w);
  const auto w_used = hn::Sub(s, p);
  const auto error = hn::Add(hn::Sub(p, hn::Sub(s, w_used)), hn::Sub(w, w_used));  // s + error = p + w, exactly
  // Where something was rounded off and s is even, its odd neighbour on the side of the error stands for all between:
  // away from zero (bits + 1) when error and s have the same sign, towards zero (bits - 1) otherwise.
  const auto zero = hn::Zero(d);
  const auto rounded = hn::Or(hn::Gt(error, zero), hn::Lt(error, zero));  // not where the error is NaN
  const auto bits = hn::BitCast(du, s), one = hn::Set(du, 1u);
  const auto even = hn::Sub(one, hn::And(bits, one));
  const auto same_sign = hn::Gt(hn::Mul(hn::CopySign(hn::Set(d, 1.0), error), hn::CopySign(hn::Set(d, 1.0), s)), zero);
  const auto step = hn::IfThenElse(hn::RebindMask(du, same_sign), even, hn::Sub(hn::Zero(du), even));
  const auto odd = hn::Add(bits, hn::IfThenElseZero(hn::RebindMask(du, rounded), step));
  return hn::DemoteTo(dh, hn::BitCast(d, odd));
}
#endif

template <class V>
HWY_INLINE V exact_fma(V a, V b, V c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#elif HWY_TARGET == HWY_SCALAR
  return hn::Set(hn::DFromV<V>(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  const hn::DFromV<V> d;
  const hn::Half<decltype(d)> dh;
  const auto low = exact_fma_half(dh, hn::LowerHalf(dh, a), hn::LowerHalf(dh, b), hn::LowerHalf(dh, c));
  const auto high = exact_fma_half(dh, hn::UpperHalf(dh, a), hn::UpperHalf(dh, b), hn::UpperHalf(dh, c));
  return hn::Combine(d, high, low);
#endif
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
