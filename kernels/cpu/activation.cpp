// SwiGLU and GELU, both through the logistic function s(z) = 1 / (1 + exp(-z)): silu(x) = x s(x), and the tanh form of
// GELU is x s(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = s(2u).
#include "kernels/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_ACTIVATION_TABLES
#define SLUICE_KERNELS_CPU_ACTIVATION_TABLES
template <class T>
struct ActivationLoops {
  void (*swiglu_forward)(const T* gate, const T* up, std::int64_t n, T* h);
  void (*swiglu_backward)(const T* gate, const T* up, T* dh, std::int64_t n, T* d_gate, T* d_up);
  void (*gelu_forward)(const T* x, T* y, std::int64_t n);
  void (*gelu_backward)(const T* x, T* dy, T* dx, std::int64_t n);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

HWY_INLINE Vec set(float v) { return hn::Set(F32(), v); }

/// exp(x) for |x| <= 87: x = q ln2 + r, exp(x) = 2^q exp(r), with the polynomial of Cephes' expf on |r| <= ln2 / 2.
/// Adding 1.5 * 2^23 rounds to an integer q that then stands in the lowest bits, ready to be added to the exponent.
HWY_INLINE Vec exp_within_87(Vec x) {
  const Vec rounder = set(12582912.0f);
  const Vec shifted = hn::MulAdd(x, set(1.44269504f), rounder);
  const Vec q = hn::Sub(shifted, rounder);
  const Vec r = hn::NegMulAdd(q, set(-2.12194440e-4f), hn::NegMulAdd(q, set(0.693359375f), x));
  Vec p = hn::MulAdd(set(1.9875691500e-4f), r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, set(1.0f)));
  const U32 d;
  return hn::BitCast(F32(), hn::Add(hn::BitCast(d, p), hn::ShiftLeft<23>(hn::BitCast(d, shifted))));
}

/// Below -87 the result is smaller than 2e-38 and becomes zero.
HWY_INLINE Vec logistic(Vec z) {
  const Vec e = exp_within_87(hn::Max(hn::Min(hn::Neg(z), set(87.0f)), set(-87.0f)));
  const Vec s = hn::Div(set(1.0f), hn::Add(set(1.0f), e));
  return hn::IfThenZeroElse(hn::Lt(z, set(-87.0f)), s);
}

template <class T>
void swiglu_forward_row(const T* gate, const T* up, std::int64_t n, T* h) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec g = io.load(gate + i);
    io.store(hn::Mul(hn::Mul(g, logistic(g)), io.load(up + i)), h + i);
  });
}

template <class T>
void swiglu_backward_row(const T* gate, const T* up, T* dh, std::int64_t n, T* d_gate, T* d_up) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec g = io.load(gate + i), u = io.load(up + i), d = io.load(dh + i);
    const Vec s = logistic(g), silu = hn::Mul(g, s);
    const Vec slope = hn::MulAdd(silu, hn::Sub(set(1.0f), s), s);
    io.store(hn::Mul(hn::Mul(d, u), slope), d_gate + i);
    io.store(hn::Mul(d, silu), d_up + i);
    io.store(hn::Mul(silu, u), dh + i);
  });
}

constexpr float gelu_scale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;
constexpr float gelu_square_max = 1e30f;  ///< far beyond where the slope is 0 or 1; nothing times infinity is no number

template <class T>
void gelu_forward_range(const T* x, T* y, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec v = io.load(x + i);
    const Vec inner = hn::MulAdd(hn::Mul(set(gelu_cubic), hn::Mul(v, v)), v, v);
    io.store(hn::Mul(v, logistic(hn::Mul(set(gelu_scale), inner))), y + i);
  });
}

template <class T>
void gelu_backward_range(const T* x, T* dy, T* dx, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec v = io.load(x + i), square = hn::Mul(v, v);
    const Vec s = logistic(hn::Mul(set(gelu_scale), hn::MulAdd(hn::Mul(set(gelu_cubic), square), v, v)));
    const Vec finite = hn::Min(square, set(gelu_square_max));
    const Vec inner_slope = hn::Mul(set(gelu_scale), hn::MulAdd(set(3 * gelu_cubic), finite, set(1.0f)));
    // s (1 - s) vanishes where v and inner_slope are large: multiply it first, so that nothing overflows
    const Vec bend = hn::Mul(hn::Mul(hn::Mul(s, hn::Sub(set(1.0f), s)), v), inner_slope);
    const Vec slope = hn::Mul(io.load(dy + i), hn::Add(s, bend));
    io.store(hn::Mul(v, s), dy + i);
    io.store(slope, dx + i);
  });
}

template <class T>
constexpr ActivationLoops<T> loops{&swiglu_forward_row<T>, &swiglu_backward_row<T>, &gelu_forward_range<T>,
                                   &gelu_backward_range<T>};

const ActivationLoops<float>* activation_f32() { return &loops<float>; }
const ActivationLoops<bf16>* activation_bf16() { return &loops<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(activation_f32);
HWY_EXPORT(activation_bf16);

template <class T>
const ActivationLoops<T>& simd();
template <>
const ActivationLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(activation_f32)();
}
template <>
const ActivationLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(activation_bf16)();
}

/// exp costs more than memory does: start a team for less.
constexpr std::int64_t activation_grain = parallel_grain / 4;

}  // namespace

template <class T>
void swiglu_forward(const T* gate, const T* up, std::int64_t ld, std::int64_t rows, std::int64_t width, T* h,
                    std::int64_t h_ld) {
  const auto row = simd<T>().swiglu_forward;
  for_rows(rows, 4 * width, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r) row(gate + r * ld, up + r * ld, width, h + r * h_ld);
  });
}

template <class T>
void swiglu_backward(const T* gate, const T* up, std::int64_t ld, T* dh, std::int64_t dh_ld, std::int64_t rows,
                     std::int64_t width, T* d_gate, T* d_up, std::int64_t d_ld) {
  const auto row = simd<T>().swiglu_backward;
  for_rows(rows, 4 * width, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r)
      row(gate + r * ld, up + r * ld, dh + r * dh_ld, width, d_gate + r * d_ld, d_up + r * d_ld);
  });
}

template <class T>
void gelu_forward(const T* x, T* y, std::int64_t n) {
  const auto loop = simd<T>().gelu_forward;
  for_pieces(n, activation_grain, [=](std::int64_t a, std::int64_t b) { loop(x + a, y + a, b - a); });
}

template <class T>
void gelu_backward(const T* x, T* dy, T* dx, std::int64_t n) {
  const auto loop = simd<T>().gelu_backward;
  for_pieces(n, activation_grain, [=](std::int64_t a, std::int64_t b) { loop(x + a, dy + a, dx + a, b - a); });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                          \
  template void swiglu_forward<T>(const T*, const T*, std::int64_t, std::int64_t, std::int64_t, T*, std::int64_t);     \
  template void swiglu_backward<T>(const T*, const T*, std::int64_t, T*, std::int64_t, std::int64_t, std::int64_t, T*, \
                                   T*, std::int64_t);                                                                  \
  template void gelu_forward<T>(const T*, T*, std::int64_t);                                                           \
  template void gelu_backward<T>(const T*, T*, T*, std::int64_t);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels
#endif
