#include "kernels/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_ELEMENTWISE_TABLES
#define SLUICE_KERNELS_CPU_ELEMENTWISE_TABLES
/// The loops of one SIMD target; each works on its range in the calling thread.
struct ConvertLoops {
  void (*widen)(const bf16*, float*, std::int64_t);
  void (*narrow)(const float*, bf16*, std::int64_t);
  void (*copy)(const float*, float*, std::int64_t);
  void (*add_widened)(const bf16*, float*, std::int64_t);
};
template <class T>
struct ElementwiseLoops {
  void (*add)(const T*, const T*, T*, std::int64_t);
  void (*add_sum)(const T* x, const float* sum, const T* bias, T* out, std::int64_t);
  void (*add_rows)(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* sum);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

template <class From, class To>
void convert(const From* src, To* dst, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR { io.store(io.load(src + i), dst + i); });
}

void add_widened_range(const bf16* x, float* y, std::int64_t n) { add_range(y, x, y, n); }

template <class T>
void add_vector(const T* a, const T* b, T* out, std::int64_t n) {
  add_range(a, b, out, n);
}

/// out = x + sum + bias; x and bias may be null.
template <class T>
void add_sum_vector(const T* x, const float* sum, const T* bias, T* out, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    Vec v = io.load(sum + i);
    if (x != nullptr) v = hn::Add(io.load(x + i), v);
    if (bias != nullptr) v = hn::Add(v, io.load(bias + i));
    io.store(v, out + i);
  });
}

/// sum[c] = sum over rows of dy[r, c], rows in order; four rows a pass, so that sum is read and written less often.
template <class T>
void add_rows(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* sum) {
  for_vectors(width, [=](std::int64_t i, auto io) HWY_ATTR { io.store(io.load(dy + i), sum + i); });
  std::int64_t r = 1;
  for (; r + 4 <= rows; r += 4) {
    const T* row = dy + r * ld;
    for_vectors(width, [=](std::int64_t i, auto io) HWY_ATTR {
      const Vec first = hn::Add(hn::Add(io.load(sum + i), io.load(row + i)), io.load(row + ld + i));
      io.store(hn::Add(hn::Add(first, io.load(row + 2 * ld + i)), io.load(row + 3 * ld + i)), sum + i);
    });
  }
  for (; r < rows; ++r) {
    const T* row = dy + r * ld;
    add_range(sum, row, sum, width);
  }
}

template <class T>
constexpr ElementwiseLoops<T> loops{&add_vector<T>, &add_sum_vector<T>, &add_rows<T>};
constexpr ConvertLoops convert_loops{&convert<bf16, float>, &convert<float, bf16>, &convert<float, float>,
                                     &add_widened_range};

const ElementwiseLoops<float>* elementwise_f32() { return &loops<float>; }
const ElementwiseLoops<bf16>* elementwise_bf16() { return &loops<bf16>; }
const ConvertLoops* converters() { return &convert_loops; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(elementwise_f32);
HWY_EXPORT(elementwise_bf16);
HWY_EXPORT(converters);

template <class T>
const ElementwiseLoops<T>& simd();
template <>
const ElementwiseLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_f32)();
}
template <>
const ElementwiseLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(elementwise_bf16)();
}

}  // namespace

void widen(const bf16* src, float* dst, std::int64_t n) {
  const auto loop = HWY_DYNAMIC_DISPATCH(converters)()->widen;
  for_pieces(n, parallel_grain, [=](std::int64_t a, std::int64_t b) { loop(src + a, dst + a, b - a); });
}

void narrow(const float* src, bf16* dst, std::int64_t n) {
  const auto loop = HWY_DYNAMIC_DISPATCH(converters)()->narrow;
  for_pieces(n, parallel_grain, [=](std::int64_t a, std::int64_t b) { loop(src + a, dst + a, b - a); });
}

void widen(const float* src, float* dst, std::int64_t n) {
  const auto loop = HWY_DYNAMIC_DISPATCH(converters)()->copy;
  for_pieces(n, parallel_grain, [=](std::int64_t a, std::int64_t b) { loop(src + a, dst + a, b - a); });
}

void narrow(const float* src, float* dst, std::int64_t n) { widen(src, dst, n); }

void add_f32(const float* x, float* y, std::int64_t n) { add(y, x, y, n); }

void add_widened(const bf16* x, float* y, std::int64_t n) {
  const auto loop = HWY_DYNAMIC_DISPATCH(converters)()->add_widened;
  for_pieces(n, parallel_grain, [=](std::int64_t a, std::int64_t b) { loop(x + a, y + a, b - a); });
}

void add_widened(const float* x, float* y, std::int64_t n) { add_f32(x, y, n); }

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n) {
  const auto loop = simd<T>().add;
  for_pieces(n, parallel_grain, [=](std::int64_t i, std::int64_t j) { loop(a + i, b + i, out + i, j - i); });
}

template <class T>
void add_bias(T* x, std::int64_t ld, const T* bias, std::int64_t rows, std::int64_t width) {
  const auto loop = simd<T>().add;
  for_rows(rows, width, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r) loop(x + r * ld, bias, x + r * ld, width);
  });
}

template <class T>
void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width) {
  const auto loop = simd<T>().add_sum;
  for_rows(rows, width, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r)
      loop(x != nullptr ? x + r * width : nullptr, sum + r * width, bias, out + r * width, width);
  });
}

template <class T>
void bias_gradient(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* d_bias,
                   float* workspace) {
  const auto add_block = simd<T>().add_rows;
  for_pieces(rows, block_rows, [=](std::int64_t a, std::int64_t b) {
    add_block(dy + a * ld, ld, b - a, width, workspace + a / block_rows * width);
  });
  add_blocks(workspace, divide_up(rows, block_rows), width, width, d_bias);
}

void add_blocks(const float* blocks, std::int64_t count, std::int64_t stride, std::int64_t width, float* sum) {
  const auto add_rows = simd<float>().add;
  const std::int64_t columns = std::max<std::int64_t>(64, parallel_grain / std::max<std::int64_t>(1, count) / 64 * 64);
  for_pieces(width, columns, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = 0; i < count; ++i) add_rows(sum + a, blocks + i * stride + a, sum + a, b - a);
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                 \
  template void add<T>(const T*, const T*, T*, std::int64_t);                                 \
  template void add_bias<T>(T*, std::int64_t, const T*, std::int64_t, std::int64_t);          \
  template void add_sum<T>(const T*, const float*, const T*, T*, std::int64_t, std::int64_t); \
  template void bias_gradient<T>(const T*, std::int64_t, std::int64_t, std::int64_t, float*, float*);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels
#endif
