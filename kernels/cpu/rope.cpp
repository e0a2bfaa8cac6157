#include <cmath>

#include "kernels/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_ROPE_TABLES
#define SLUICE_KERNELS_CPU_ROPE_TABLES
/// Turns the heads of one token by the angles of its position; sign is +1, or -1 to turn back.
template <class T>
using RopeToken = void (*)(T* x, std::int64_t heads, std::int64_t half, const float* cos, const float* sin, float sign);
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

template <class T>
void rope_token(T* x, std::int64_t heads, std::int64_t half, const float* cos, const float* sin, float sign) {
  for (std::int64_t h = 0; h < heads; ++h) {
    T* first = x + 2 * h * half;
    T* second = first + half;
    for_vectors(half, [=](std::int64_t i, auto io) HWY_ATTR {
      const Vec a = io.load(first + i), b = io.load(second + i);
      const Vec c = io.load(cos + i), s = hn::Mul(io.load(sin + i), hn::Set(F32(), sign));
      io.store(hn::NegMulAdd(b, s, hn::Mul(a, c)), first + i);
      io.store(hn::MulAdd(a, s, hn::Mul(b, c)), second + i);
    });
  }
}

RopeToken<float> rope_f32() { return &rope_token<float>; }
RopeToken<bf16> rope_bf16() { return &rope_token<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(rope_f32);
HWY_EXPORT(rope_bf16);

template <class T>
RopeToken<T> simd();
template <>
RopeToken<float> simd() {
  return HWY_DYNAMIC_DISPATCH(rope_f32)();
}
template <>
RopeToken<bf16> simd() {
  return HWY_DYNAMIC_DISPATCH(rope_bf16)();
}

}  // namespace

template <class T>
void rope(T* x, std::int64_t stride, std::int64_t tokens, const Positions& positions, std::int64_t heads,
          std::int64_t head_dim, const float* cos, const float* sin, bool inverse) {
  const auto token = simd<T>();
  const std::int64_t half = head_dim / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  for_rows(tokens, heads * head_dim, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t t = a; t < b; ++t) {
      const std::int64_t angle = positions(t) * half;
      token(x + t * stride, heads, half, cos + angle, sin + angle, sign);
    }
  });
}

void rope_rows(const float* frequencies, std::int64_t half, double scale, const Positions& positions, std::int64_t rows,
               float* cos, float* sin) {
  for_rows(rows, half, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t t = a; t < b; ++t) {
      const auto position = static_cast<float>(positions(t));
      for (std::int64_t i = 0; i < half; ++i) {
        const auto angle = static_cast<double>(position * frequencies[i]);
        cos[t * half + i] = static_cast<float>(std::cos(angle) * scale);
        sin[t * half + i] = static_cast<float>(std::sin(angle) * scale);
      }
    }
  });
}

template void rope<float>(float*, std::int64_t, std::int64_t, const Positions&, std::int64_t, std::int64_t,
                          const float*, const float*, bool);
template void rope<bf16>(bf16*, std::int64_t, std::int64_t, const Positions&, std::int64_t, std::int64_t, const float*,
                         const float*, bool);

}  // namespace sluice::kernels
#endif
