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

HWY_INLINE Bits join_lanes(const bf16* parameter, const std::int16_t* remainder) {
  const auto high = hn::PromoteTo(U32(), hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(parameter)));
  const auto low = hn::PromoteTo(I32(), hn::LoadU(I16(), remainder));
  return hn::Add(hn::ShiftLeft<16>(high), hn::BitCast(U32(), low));
}

/// Half of a unit of the parameter is added to the magnitude, which carries into the upper half where the lower one
/// rounds up; the lower half read as signed is then what is missing. Not for NaN.
HWY_INLINE void split_number(Bits master, bf16* parameter, std::int16_t* remainder) {
  const auto high = hn::ShiftRight<16>(hn::Add(master, hn::Set(U32(), 0x8000u)));
  hn::StoreU(hn::TruncateTo(U16(), high), U16(), reinterpret_cast<std::uint16_t*>(parameter));
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
  Tail(const T* from, std::int64_t count) { std::memcpy(data, from, static_cast<std::size_t>(count) * sizeof(T)); }
  void put_back(T* to, std::int64_t count) const { std::memcpy(to, data, static_cast<std::size_t>(count) * sizeof(T)); }
};

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
