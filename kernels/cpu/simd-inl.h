// Vectors of fp32 over f32 or bf16 storage, shared by the pointwise kernels. Compiled once per SIMD target: include it
// after hwy/foreach_target.h (that is why the guard flips).
#if defined(SLUICE_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_SIMD_INL_H_
#undef SLUICE_KERNELS_CPU_SIMD_INL_H_
#else
#define SLUICE_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "sluice/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::Rebind<std::uint32_t, F32>;
using I32 = hn::Rebind<std::int32_t, F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using I16 = hn::Rebind<std::int16_t, F32>;
using Vec = hn::Vec<F32>;

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(F32())); }

HWY_INLINE Vec load_lanes(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE Vec load_lanes(const bf16* p) {
  const auto bits = hn::PromoteTo(U32(), hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(p)));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE void store_lanes(Vec v, float* p) { hn::StoreU(v, F32(), p); }
/// Rounds like to_bf16: nearest even, NaN becomes the quiet NaN with its sign.
HWY_INLINE void store_lanes(Vec v, bf16* p) {
  const U32 d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu))));
  const auto nan = hn::Or(hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000u)), hn::Set(d, 0x7fc0u));
  const auto out = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), nan, rounded);
  hn::StoreU(hn::TruncateTo(U16(), out), U16(), reinterpret_cast<std::uint16_t*>(p));
}

/// How a loop body touches memory: a whole vector.
struct Whole {
  template <class T>
  HWY_INLINE Vec load(const T* p) const {
    return load_lanes(p);
  }
  template <class T>
  HWY_INLINE void store(Vec v, T* p) const {
    store_lanes(v, p);
  }
  HWY_INLINE Vec only_valid(Vec v) const { return v; }
};

/// The same for the first `count` lanes, by way of a small buffer; the other lanes read as zero.
struct Part {
  std::int64_t count;
  template <class T>
  HWY_INLINE Vec load(const T* p) const {
    T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(buffer, p, static_cast<std::size_t>(count) * sizeof(T));
    return load_lanes(buffer);
  }
  template <class T>
  HWY_INLINE void store(Vec v, T* p) const {
    T buffer[HWY_MAX_BYTES / sizeof(float)];
    store_lanes(v, buffer);
    std::memcpy(p, buffer, static_cast<std::size_t>(count) * sizeof(T));
  }
  HWY_INLINE Vec only_valid(Vec v) const {
    return hn::IfThenElseZero(hn::FirstN(F32(), static_cast<std::size_t>(count)), v);
  }
};

/// Calls body(i, access) for vector after vector of n elements, the last one with Part where n is no multiple.
template <class Body>
HWY_INLINE void for_vectors(std::int64_t n, const Body& body) {
  const std::int64_t step = lanes();
  std::int64_t i = 0;
  for (; i + step <= n; i += step) body(i, Whole());
  if (i < n) body(i, Part{n - i});
}

/// out = a + b; out may be either.
template <class A, class B, class Out>
HWY_INLINE void add_range(const A* a, const B* b, Out* out, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR { io.store(hn::Add(io.load(a + i), io.load(b + i)), out + i); });
}

HWY_INLINE float sum_lanes(Vec v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
