// What all loops of AdamW share, a vector at a time. Compiled once per SIMD target.
#if defined(SLUICE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_ADAMW_INL_H_
#undef SLUICE_KERNELS_CPU_ADAMW_INL_H_
#else
#define SLUICE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/exact_fma-inl.h"
#include "kernels/cpu/master-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// The constants, a vector each.
struct AdamwVectors {
  Vec scale, one_minus_beta1, beta2, one_minus_beta2, root_correction2, eps, keep, minus_rate;
  HWY_INLINE explicit AdamwVectors(const AdamwConstants& c)
      : scale(hn::Set(F32(), c.gradient_scale)),
        one_minus_beta1(hn::Set(F32(), c.one_minus_beta1)),
        beta2(hn::Set(F32(), c.beta2)),
        one_minus_beta2(hn::Set(F32(), c.one_minus_beta2)),
        root_correction2(hn::Set(F32(), c.root_correction2)),
        eps(hn::Set(F32(), c.eps)),
        keep(hn::Set(F32(), c.keep)),
        minus_rate(hn::Set(F32(), c.minus_rate)) {}

  /// The update of one vector; this sequence of operations is the contract.
  HWY_INLINE Vec update(Vec master, Vec* exp_avg, Vec* exp_avg_sq, Vec gradient) const {
    const Vec g = hn::Mul(gradient, scale);
    const Vec m = exact_fma(one_minus_beta1, hn::Sub(g, *exp_avg), *exp_avg);
    const Vec v = exact_fma(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, *exp_avg_sq));
    const Vec denominator = exact_fma(hn::Sqrt(v), root_correction2, eps);
    *exp_avg = m;
    *exp_avg_sq = v;
    return exact_fma(minus_rate, hn::Div(m, denominator), hn::Mul(master, keep));
  }
};

/// A range's parameter: fp32 that is its own master, or bf16 with remainder.
template <class P>
struct Masters;

template <>
struct Masters<float> {
  float* parameter;
  HWY_INLINE explicit Masters(const AdamwRange& r) : parameter(static_cast<float*>(r.parameter)) {}
  HWY_INLINE Vec load(std::int64_t i) const { return load_lanes(parameter + i); }
  HWY_INLINE void store(Vec v, std::int64_t i) const { store_lanes(v, parameter + i); }
};

template <>
struct Masters<bf16> {
  bf16* parameter;
  std::int16_t* remainder;
  HWY_INLINE explicit Masters(const AdamwRange& r)
      : parameter(static_cast<bf16*>(r.parameter)), remainder(r.remainder) {}
  HWY_INLINE Vec load(std::int64_t i) const { return hn::BitCast(F32(), join_lanes(parameter + i, remainder + i)); }
  HWY_INLINE void store(Vec v, std::int64_t i) const {
    split_lanes(hn::BitCast(U32(), v), parameter + i, remainder + i);
  }
};

/// 1 in each lane whose value is NaN, infinite or would round to infinity as bf16.
HWY_INLINE Bits diverged_lanes(Vec master) {
  const U32 d;
  // magnitudes are compared as signed integers, which every target has
  const auto magnitude = hn::BitCast(I32(), hn::And(hn::BitCast(d, master), hn::Set(d, 0x7fffffffu)));
  const auto bad = hn::Gt(magnitude, hn::Set(I32(), 0x7f7f7fff));
  return hn::And(hn::BitCast(d, hn::VecFromMask(I32(), bad)), hn::Set(d, 1u));
}

HWY_INLINE std::uint64_t total(Bits counts) {
  std::uint32_t each[HWY_MAX_BYTES / sizeof(std::uint32_t)];
  hn::StoreU(counts, U32(), each);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < lanes(); ++i) sum += each[i];
  return sum;
}

/// Asks for the cache lines of p[0] to p[n), a fixed distance ahead. Reaching beyond an array's end is harmless:
/// prefetches do not fault.
template <std::int64_t n, class T>
HWY_INLINE void prefetch_ahead(const T* p) {
  constexpr std::uintptr_t ahead_bytes = 512;
  const auto first = reinterpret_cast<std::uintptr_t>(p) + ahead_bytes;
  for (std::uintptr_t line = 0; line < n * sizeof(T); line += 64)
    // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on pointers may not reach beyond the end.
    hwy::Prefetch(reinterpret_cast<const char*>(first + line));
}

template <std::int64_t n>
HWY_INLINE void prefetch_ahead(const Masters<float>& master, std::int64_t i) {
  prefetch_ahead<n>(master.parameter + i);
}
template <std::int64_t n>
HWY_INLINE void prefetch_ahead(const Masters<bf16>& master, std::int64_t i) {
  prefetch_ahead<n>(master.parameter + i);
  prefetch_ahead<n>(master.remainder + i);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
