#include "sluice/adamw.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cpp"
#include <hwy/foreach_target.h>

#include "hwy/cache_control.h"
#include "kernels/cpu/exact_fma-inl.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_ADAMW_TABLES
#define SLUICE_KERNELS_CPU_ADAMW_TABLES
/// The step's scalars as the loop wants them, each rounded once from double.
struct AdamwConstants {
  float gradient_scale, one_minus_beta1, beta2, one_minus_beta2;
  float root_correction2;  ///< 1 / sqrt(1 - beta2^step)
  float eps, keep;         ///< keep: 1 - lr * weight_decay
  float minus_rate;        ///< -lr / (1 - beta1^step)
};

struct AdamwLoops {
  std::uint64_t (*bf16_f32)(const AdamwConstants&, bf16*, std::int16_t*, float*, float*, const float*, std::int64_t);
  std::uint64_t (*bf16_bf16)(const AdamwConstants&, bf16*, std::int16_t*, float*, float*, const bf16*, std::int64_t);
  std::uint64_t (*f32_f32)(const AdamwConstants&, float*, float*, float*, const float*, std::int64_t);
  void (*split)(const float*, bf16*, std::int16_t*, std::int64_t);
  void (*join)(const bf16*, const std::int16_t*, float*, std::int64_t);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

using Bits = hn::Vec<U32>;

HWY_INLINE Bits join_lanes(const bf16* parameter, const std::int16_t* remainder) {
  const auto high = hn::PromoteTo(U32(), hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(parameter)));
  const auto low = hn::PromoteTo(I32(), hn::LoadU(I16(), remainder));
  return hn::Add(hn::ShiftLeft<16>(high), hn::BitCast(U32(), low));
}

/// Half of a unit of the parameter is added to the magnitude, which carries into the upper half where the lower one
/// rounds up; the lower half read as signed is then what is missing.
HWY_INLINE void split_lanes(Bits master, bf16* parameter, std::int16_t* remainder) {
  const U32 d;
  const auto nan = hn::RebindMask(d, hn::IsNaN(hn::BitCast(F32(), master)));
  const auto whole = hn::IfThenElse(nan, hn::Set(d, 0x7fc00000u), master);
  const auto high = hn::ShiftRight<16>(hn::Add(whole, hn::Set(d, 0x8000u)));
  hn::StoreU(hn::TruncateTo(U16(), high), U16(), reinterpret_cast<std::uint16_t*>(parameter));
  hn::StoreU(hn::TruncateTo(U16(), whole), U16(), reinterpret_cast<std::uint16_t*>(remainder));
}

/// 1 in each lane whose value is NaN, infinite or would round to infinity as bf16.
HWY_INLINE Bits diverged_lanes(Bits master) {
  const U32 d;
  // magnitudes are compared as signed integers, which every target has
  const auto magnitude = hn::BitCast(I32(), hn::And(master, hn::Set(d, 0x7fffffffu)));
  const auto bad = hn::Gt(magnitude, hn::Set(I32(), 0x7f7f7fff));
  return hn::And(hn::BitCast(d, hn::VecFromMask(I32(), bad)), hn::Set(d, 1u));
}

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

/// A copy of the last few elements of an array, a whole vector long, so that the tail runs through the same code.
template <class T>
struct Tail {
  T data[HWY_MAX_BYTES / sizeof(float)] = {};
  Tail(const T* from, std::int64_t count) { std::memcpy(data, from, static_cast<std::size_t>(count) * sizeof(T)); }
  void put_back(T* to, std::int64_t count) const { std::memcpy(to, data, static_cast<std::size_t>(count) * sizeof(T)); }
};

/// Elements of one strip: two cache lines of fp32, one of bf16; a multiple of every target's vector.
constexpr std::int64_t strip = 32;

/// Five arrays are more streams than the hardware's prefetchers follow well across page borders, so the lines this
/// far ahead of the strip are asked for by hand. Reaching beyond the end is harmless: prefetches do not fault.
template <class T>
HWY_INLINE void prefetch_strip(const T* p) {
  constexpr std::uintptr_t ahead_bytes = 512;
  const auto first = reinterpret_cast<std::uintptr_t>(p) + ahead_bytes;
  for (std::uintptr_t line = 0; line < strip * sizeof(T); line += 64)
    // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on pointers may not reach beyond the end.
    hwy::Prefetch(reinterpret_cast<const char*>(first + line));
}

template <class G>
struct Bf16Range {
  bf16* parameter;
  std::int16_t* remainder;
  float *exp_avg, *exp_avg_sq;
  const G* gradient;

  HWY_INLINE void prefetch(std::int64_t i) const {
    prefetch_strip(parameter + i);
    prefetch_strip(remainder + i);
    prefetch_strip(exp_avg + i);
    prefetch_strip(exp_avg_sq + i);
    prefetch_strip(gradient + i);
  }

  HWY_INLINE Bits update(const AdamwVectors& c, std::int64_t i) const {
    Vec m = load_lanes(exp_avg + i), v = load_lanes(exp_avg_sq + i);
    const Vec master = hn::BitCast(F32(), join_lanes(parameter + i, remainder + i));
    const auto bits = hn::BitCast(U32(), c.update(master, &m, &v, load_lanes(gradient + i)));
    store_lanes(m, exp_avg + i);
    store_lanes(v, exp_avg_sq + i);
    split_lanes(bits, parameter + i, remainder + i);
    return diverged_lanes(bits);
  }

  HWY_INLINE Bits update_tail(const AdamwVectors& c, std::int64_t i, std::int64_t count) const {
    Tail<bf16> p(parameter + i, count);
    Tail<std::int16_t> r(remainder + i, count);
    Tail<float> m(exp_avg + i, count), v(exp_avg_sq + i, count);
    const Tail<G> g(gradient + i, count);
    const Bits bad = Bf16Range{p.data, r.data, m.data, v.data, g.data}.update(c, 0);
    p.put_back(parameter + i, count);
    r.put_back(remainder + i, count);
    m.put_back(exp_avg + i, count);
    v.put_back(exp_avg_sq + i, count);
    return bad;
  }
};

struct F32Range {
  float *parameter, *exp_avg, *exp_avg_sq;
  const float* gradient;

  HWY_INLINE void prefetch(std::int64_t i) const {
    prefetch_strip(parameter + i);
    prefetch_strip(exp_avg + i);
    prefetch_strip(exp_avg_sq + i);
    prefetch_strip(gradient + i);
  }

  HWY_INLINE Bits update(const AdamwVectors& c, std::int64_t i) const {
    Vec m = load_lanes(exp_avg + i), v = load_lanes(exp_avg_sq + i);
    const Vec master = c.update(load_lanes(parameter + i), &m, &v, load_lanes(gradient + i));
    store_lanes(m, exp_avg + i);
    store_lanes(v, exp_avg_sq + i);
    store_lanes(master, parameter + i);
    return diverged_lanes(hn::BitCast(U32(), master));
  }

  HWY_INLINE Bits update_tail(const AdamwVectors& c, std::int64_t i, std::int64_t count) const {
    Tail<float> p(parameter + i, count), m(exp_avg + i, count), v(exp_avg_sq + i, count);
    const Tail<float> g(gradient + i, count);
    const Bits bad = F32Range{p.data, m.data, v.data, g.data}.update(c, 0);
    p.put_back(parameter + i, count);
    m.put_back(exp_avg + i, count);
    v.put_back(exp_avg_sq + i, count);
    return bad;
  }
};

HWY_INLINE std::uint64_t total(Bits counts) {
  std::uint32_t each[HWY_MAX_BYTES / sizeof(std::uint32_t)];
  hn::StoreU(counts, U32(), each);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < lanes(); ++i) sum += each[i];
  return sum;
}

/// Elements from `begin` to `end`, fewer than 2^32 (the lanes count in 32 bits).
template <class Range>
HWY_INLINE std::uint64_t update_range(const AdamwVectors& c, const Range& range, std::int64_t begin, std::int64_t end) {
  const std::int64_t step = lanes();
  Bits counts = hn::Zero(U32());
  std::int64_t i = begin;
  for (; i + strip <= end; i += strip) {
    range.prefetch(i);
    for (std::int64_t k = 0; k < strip; k += step) counts = hn::Add(counts, range.update(c, i + k));
  }
  for (; i + step <= end; i += step) counts = hn::Add(counts, range.update(c, i));
  if (i < end) {
    const Bits bad = range.update_tail(c, i, end - i);
    counts = hn::Add(counts, hn::IfThenElseZero(hn::FirstN(U32(), static_cast<std::size_t>(end - i)), bad));
  }
  return total(counts);
}

template <class Range>
HWY_INLINE std::uint64_t update_all(const AdamwConstants& constants, const Range& range, std::int64_t n) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  const AdamwVectors c(constants);
  std::uint64_t diverged = 0;
  for (std::int64_t i = 0; i < n; i += most) diverged += update_range(c, range, i, HWY_MIN(n, i + most));
  return diverged;
}

template <class G>
std::uint64_t adamw_bf16(const AdamwConstants& c, bf16* parameter, std::int16_t* remainder, float* exp_avg,
                         float* exp_avg_sq, const G* gradient, std::int64_t n) {
  return update_all(c, Bf16Range<G>{parameter, remainder, exp_avg, exp_avg_sq, gradient}, n);
}

std::uint64_t adamw_f32(const AdamwConstants& c, float* parameter, float* exp_avg, float* exp_avg_sq,
                        const float* gradient, std::int64_t n) {
  return update_all(c, F32Range{parameter, exp_avg, exp_avg_sq, gradient}, n);
}

void split(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    split_lanes(hn::BitCast(U32(), load_lanes(master + i)), parameter + i, remainder + i);
  if (i < n) {
    const Tail<float> w(master + i, n - i);
    Tail<bf16> p(parameter + i, n - i);
    Tail<std::int16_t> r(remainder + i, n - i);
    split_lanes(hn::BitCast(U32(), load_lanes(w.data)), p.data, r.data);
    p.put_back(parameter + i, n - i);
    r.put_back(remainder + i, n - i);
  }
}

void join(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    store_lanes(hn::BitCast(F32(), join_lanes(parameter + i, remainder + i)), master + i);
  if (i < n) {
    const Tail<bf16> p(parameter + i, n - i);
    const Tail<std::int16_t> r(remainder + i, n - i);
    Tail<float> w(master + i, n - i);
    store_lanes(hn::BitCast(F32(), join_lanes(p.data, r.data)), w.data);
    w.put_back(master + i, n - i);
  }
}

constexpr AdamwLoops loops{&adamw_bf16<float>, &adamw_bf16<bf16>, &adamw_f32, &split, &join};
const AdamwLoops* adamw_loops() { return &loops; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(adamw_loops);

const AdamwLoops& adamw_simd() { return *HWY_DYNAMIC_DISPATCH(adamw_loops)(); }

AdamwConstants constants(const AdamwStep& s) {
  const auto steps = static_cast<double>(s.step);
  const double lr = s.lr, beta1 = s.beta1, beta2 = s.beta2;
  AdamwConstants c{};
  c.gradient_scale = s.gradient_scale;
  c.one_minus_beta1 = static_cast<float>(1 - beta1);
  c.beta2 = s.beta2;
  c.one_minus_beta2 = static_cast<float>(1 - beta2);
  c.root_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, steps)));
  c.eps = s.eps;
  c.keep = static_cast<float>(1 - lr * s.weight_decay);
  c.minus_rate = static_cast<float>(-lr / (1 - std::pow(beta1, steps)));
  return c;
}

}  // namespace
}  // namespace sluice::kernels

namespace sluice {

AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const float* gradient, std::int64_t numel) {
  return {kernels::adamw_simd().bf16_f32(kernels::constants(s), parameter, remainder, exp_avg, exp_avg_sq, gradient,
                                         numel)};
}

AdamwReport adamw_bf16(const AdamwStep& s, bf16* parameter, std::int16_t* remainder, float* exp_avg, float* exp_avg_sq,
                       const bf16* gradient, std::int64_t numel) {
  return {kernels::adamw_simd().bf16_bf16(kernels::constants(s), parameter, remainder, exp_avg, exp_avg_sq, gradient,
                                          numel)};
}

AdamwReport adamw_f32(const AdamwStep& s, float* parameter, float* exp_avg, float* exp_avg_sq, const float* gradient,
                      std::int64_t numel) {
  return {kernels::adamw_simd().f32_f32(kernels::constants(s), parameter, exp_avg, exp_avg_sq, gradient, numel)};
}

void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel) {
  kernels::adamw_simd().split(master, parameter, remainder, numel);
}

void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel) {
  kernels::adamw_simd().join(parameter, remainder, master, numel);
}

}  // namespace sluice
#endif
