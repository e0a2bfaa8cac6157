#include "kernels/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream.cpp"
#include <hwy/foreach_target.h>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd-inl.h"
#include "sluice/status.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

void negate(float* x, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR { io.store(hn::Neg(io.load(x + i)), x + i); });
}

constexpr std::int64_t line_numel = 64 / sizeof(float);

/// Prefetches do not fault: they may reach beyond the end.
HWY_INLINE void negate_line(float* x, std::uintptr_t ahead_bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on pointers may not reach beyond the end.
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(x) + ahead_bytes));
  for (std::int64_t k = 0; k < line_numel; k += lanes()) store_lanes(hn::Neg(load_lanes(x + k)), x + k);
}

void negate_ahead(float* x, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + line_numel <= n; i += line_numel) negate_line(x + i, 4096);
  negate(x + i, n - i);
}

void negate_four(float* x, std::int64_t n) {
  const std::int64_t quarter = n / 4 / line_numel * line_numel;
  for (std::int64_t i = 0; i < quarter; i += line_numel)
    for (std::int64_t q = 0; q < 4; ++q) negate_line(x + q * quarter + i, 1024);
  negate(x + 4 * quarter, n - 4 * quarter);
}

/// c[i] = f(i, tag) for whole vectors, stored by `store`, and then for one element after the other.
template <class F, class Store>
HWY_INLINE void for_doubles(double* c, std::int64_t numel, const F& f, const Store& store) {
  const hn::ScalableTag<double> whole;
  const hn::CappedTag<double, 1> one;
  const auto lanes_f64 = static_cast<std::int64_t>(hn::Lanes(whole));
  std::int64_t i = 0;
  for (; i + 4 * lanes_f64 <= numel; i += 4 * lanes_f64)
    for (std::int64_t k = 0; k < 4; ++k) store(f(i + k * lanes_f64, whole), whole, c + i + k * lanes_f64);
  for (; i < numel; ++i) hn::StoreU(f(i, one), one, c + i);
}

constexpr auto store_cached = [](auto v, auto d, double* c) HWY_ATTR { hn::Store(v, d, c); };
constexpr auto store_past_caches = [](auto v, auto d, double* c) HWY_ATTR { hn::Stream(v, d, c); };

void copy(const StreamArrays& s) {
  for_doubles(
      s.c, s.numel, [a = s.a](std::int64_t i, auto d) HWY_ATTR { return hn::LoadU(d, a + i); }, store_cached);
}
void copy_nt(const StreamArrays& s) {
  for_doubles(
      s.c, s.numel, [a = s.a](std::int64_t i, auto d) HWY_ATTR { return hn::LoadU(d, a + i); }, store_past_caches);
  hwy::FlushStream();
}
void scale(const StreamArrays& s) {
  for_doubles(
      s.c, s.numel,
      [a = s.a](std::int64_t i, auto d) HWY_ATTR { return hn::Mul(hn::Set(d, 3.0), hn::LoadU(d, a + i)); },
      store_cached);
}
void add(const StreamArrays& s) {
  for_doubles(
      s.c, s.numel,
      [a = s.a, b = s.b](std::int64_t i, auto d) HWY_ATTR { return hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)); },
      store_cached);
}
void triad(const StreamArrays& s) {
  for_doubles(
      s.c, s.numel,
      [a = s.a, b = s.b](std::int64_t i, auto d)
          HWY_ATTR { return hn::Add(hn::LoadU(d, a + i), hn::Mul(hn::Set(d, 3.0), hn::LoadU(d, b + i))); },
      store_cached);
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

const StreamArrays& aligned(const StreamArrays& s) {
  SLUICE_CHECK(reinterpret_cast<std::uintptr_t>(s.c) % 64 == 0, "(c at %p)", static_cast<void*>(s.c));
  return s;
}

}  // namespace

HWY_EXPORT(negate);
HWY_EXPORT(negate_ahead);
HWY_EXPORT(negate_four);
HWY_EXPORT(copy);
HWY_EXPORT(copy_nt);
HWY_EXPORT(scale);
HWY_EXPORT(add);
HWY_EXPORT(triad);

void stream_update(std::span<float> x) { HWY_DYNAMIC_DISPATCH(negate)(x.data(), std::ssize(x)); }
void stream_update_ahead(std::span<float> x) { HWY_DYNAMIC_DISPATCH(negate_ahead)(x.data(), std::ssize(x)); }
void stream_update_four(std::span<float> x) { HWY_DYNAMIC_DISPATCH(negate_four)(x.data(), std::ssize(x)); }
void stream_copy(const StreamArrays& s) { HWY_DYNAMIC_DISPATCH(copy)(aligned(s)); }
void stream_copy_nt(const StreamArrays& s) { HWY_DYNAMIC_DISPATCH(copy_nt)(aligned(s)); }
void stream_scale(const StreamArrays& s) { HWY_DYNAMIC_DISPATCH(scale)(aligned(s)); }
void stream_add(const StreamArrays& s) { HWY_DYNAMIC_DISPATCH(add)(aligned(s)); }
void stream_triad(const StreamArrays& s) { HWY_DYNAMIC_DISPATCH(triad)(aligned(s)); }

}  // namespace sluice::kernels
#endif
