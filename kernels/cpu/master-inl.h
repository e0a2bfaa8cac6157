// fp32 master weights as bf16 parameter + remainder (sluice/adamw.h), a vector at a time. Compiled once per SIMD
// target.
#if defined(SLUICE_KERNELS_CPU_MASTER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_MASTER_INL_H_
#undef SLUICE_KERNELS_CPU_MASTER_INL_H_
#else
#define SLUICE_KERNELS_CPU_MASTER_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

using Bits = hn::Vec<U32>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
// One permutation of 16-bit lanes where a promotion or truncation also needs a shift, which takes the port that
// divides.
HWY_INLINE Bits load_high_halves(const std::uint16_t* p) {
  const __m512i places = _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16,
                                          7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
  const __m512i x = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return Bits{_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, places, x)};
}
HWY_INLINE hn::Vec<U16> high_halves(Bits x) {
  const __m512i places = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 31 << 16 | 29, 27 << 16 | 25, 23 << 16 | 21,
                                          19 << 16 | 17, 15 << 16 | 13, 11 << 16 | 9, 7 << 16 | 5, 3 << 16 | 1);
  return hn::Vec<U16>{_mm512_castsi512_si256(_mm512_permutexvar_epi16(places, x.raw))};
}
#else
HWY_INLINE Bits load_high_halves(const std::uint16_t* p) {
  return hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), p)));
}
HWY_INLINE hn::Vec<U16> high_halves(Bits x) { return hn::TruncateTo(U16(), hn::ShiftRight<16>(x)); }
#endif

HWY_INLINE Vec load_wide(const float* p) { return load_lanes(p); }
HWY_INLINE Vec load_wide(const bf16* p) {
  return hn::BitCast(F32(), load_high_halves(reinterpret_cast<const std::uint16_t*>(p)));
}

HWY_INLINE Bits join_lanes(const bf16* parameter, const std::int16_t* remainder) {
  const auto low = hn::PromoteTo(I32(), hn::LoadU(I16(), remainder));
  return hn::Add(load_high_halves(reinterpret_cast<const std::uint16_t*>(parameter)), hn::BitCast(U32(), low));
}

/// Half of a unit of the parameter is added to the magnitude, which carries into the upper half where the lower one
/// rounds up; the lower half read as signed is then what is missing. Not for NaN.
HWY_INLINE void split_number(Bits master, bf16* parameter, std::int16_t* remainder) {
  const auto high = high_halves(hn::Add(master, hn::Set(U32(), 0x8000u)));
  hn::StoreU(high, U16(), reinterpret_cast<std::uint16_t*>(parameter));
  hn::StoreU(hn::TruncateTo(U16(), master), U16(), reinterpret_cast<std::uint16_t*>(remainder));
}

HWY_INLINE Bits with_quiet_nan(Bits x) {
  const U32 d;
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(hn::BitCast(F32(), x))), hn::Set(d, 0x7fc00000u), x);
}

HWY_INLINE void split_lanes(Bits master, bf16* parameter, std::int16_t* remainder) {
  split_number(with_quiet_nan(master), parameter, remainder);
}

/// Lanes whose magnitude has at least the given bits. Compared as signed integers, which every target has.
HWY_INLINE hn::Mask<I32> magnitude_from(Bits x, std::uint32_t bits) {
  const auto magnitude = hn::BitCast(I32(), hn::And(x, hn::Set(U32(), 0x7fffffffu)));
  return hn::Gt(magnitude, hn::Set(I32(), static_cast<std::int32_t>(bits - 1)));
}

/// A copy of the last few elements of an array, a whole vector long, so that the tail runs through the same code.
template <class T>
struct Tail {
  T data[HWY_MAX_BYTES / sizeof(float)] = {};
  /// Arrays that a format lacks are null, of which there are 0 elements.
  Tail(const T* from, std::int64_t count) {
    if (count > 0) std::memcpy(data, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  void put_back(T* to, std::int64_t count) const {
    if (count > 0) std::memcpy(to, data, static_cast<std::size_t>(count) * sizeof(T));
  }
};

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
