#include "kernels/cpu/norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_NORM_TABLES
#define SLUICE_KERNELS_CPU_NORM_TABLES
/// The loops of one SIMD target over one row. For RMSNorm mean is 0 and bias, d_bias are null.
template <class T>
struct NormLoops {
  float (*sum)(const T* x, std::int64_t width);
  float (*squares)(const T* x, float mean, std::int64_t width);
  void (*scale)(const T* x, float mean, float rstd, const T* weight, const T* bias, std::int64_t width, T* y);
  void (*backward)(const T* x, float mean, float rstd, const T* weight, const T* dy, std::int64_t width, bool centred,
                   bool add_to_dx, T* dx, float* d_weight, float* d_bias);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// total = term(i, access, total) over a row, in four running sums that do not wait for each other.
template <class Term>
HWY_INLINE float sum_terms(std::int64_t width, const Term& term) {
  const std::int64_t step = lanes();
  Vec a = hn::Zero(F32()), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * step <= width; i += 4 * step) {
    a = term(i, Whole(), a);
    b = term(i + step, Whole(), b);
    c = term(i + 2 * step, Whole(), c);
    d = term(i + 3 * step, Whole(), d);
  }
  for (; i + step <= width; i += step) a = term(i, Whole(), a);
  if (i < width) a = term(i, Part{width - i}, a);
  return sum_lanes(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

template <class T>
float sum(const T* x, std::int64_t width) {
  return sum_terms(width, [=](std::int64_t i, auto io, Vec total) HWY_ATTR { return hn::Add(total, io.load(x + i)); });
}

template <class T>
float squares(const T* x, float mean, std::int64_t width) {
  return sum_terms(width, [=](std::int64_t i, auto io, Vec total) HWY_ATTR {
    const Vec d = io.only_valid(hn::Sub(io.load(x + i), hn::Set(F32(), mean)));
    return hn::MulAdd(d, d, total);
  });
}

template <class T>
void scale(const T* x, float mean, float rstd, const T* weight, const T* bias, std::int64_t width, T* y) {
  const Vec m = hn::Set(F32(), mean), s = hn::Set(F32(), rstd);
  for_vectors(width, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec normal = hn::Mul(hn::Sub(io.load(x + i), m), s), w = io.load(weight + i);
    io.store(bias == nullptr ? hn::Mul(normal, w) : hn::MulAdd(normal, w, io.load(bias + i)), y + i);
  });
}

/// With n = (x - mean) rstd and g = dy weight: dx = rstd (g - [mean(g)] - n mean(g n)), the bracket for LayerNorm.
/// dy n and dy are added to d_weight and d_bias.
template <class T>
void backward(const T* x, float mean, float rstd, const T* weight, const T* dy, std::int64_t width, bool centred,
              bool add_to_dx, T* dx, float* d_weight, float* d_bias) {
  const Vec m = hn::Set(F32(), mean), s = hn::Set(F32(), rstd);
  Vec sum_g = hn::Zero(F32()), sum_gn = hn::Zero(F32());
  for_vectors(width, [&](std::int64_t i, auto io) HWY_ATTR {
    const Vec d = io.load(dy + i), n = hn::Mul(hn::Sub(io.load(x + i), m), s), g = hn::Mul(d, io.load(weight + i));
    sum_g = hn::Add(sum_g, g);
    sum_gn = hn::MulAdd(g, n, sum_gn);
    io.store(hn::MulAdd(d, n, io.load(d_weight + i)), d_weight + i);
    if (d_bias != nullptr) io.store(hn::Add(io.load(d_bias + i), d), d_bias + i);
  });
  const float share = 1.0f / static_cast<float>(width);
  const Vec mean_g = hn::Set(F32(), centred ? sum_lanes(sum_g) * share : 0.0f);
  const Vec mean_gn = hn::Set(F32(), sum_lanes(sum_gn) * share);
  for_vectors(width, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec n = hn::Mul(hn::Sub(io.load(x + i), m), s), g = hn::Mul(io.load(dy + i), io.load(weight + i));
    const Vec d = hn::Mul(s, hn::NegMulAdd(n, mean_gn, hn::Sub(g, mean_g)));
    io.store(add_to_dx ? hn::Add(io.load(dx + i), d) : d, dx + i);
  });
}

template <class T>
constexpr NormLoops<T> loops{&sum<T>, &squares<T>, &scale<T>, &backward<T>};

const NormLoops<float>* norm_f32() { return &loops<float>; }
const NormLoops<bf16>* norm_bf16() { return &loops<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(norm_f32);
HWY_EXPORT(norm_bf16);

template <class T>
const NormLoops<T>& simd();
template <>
const NormLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(norm_f32)();
}
template <>
const NormLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(norm_bf16)();
}

/// f(row begin, row end, index) over blocks of block_rows rows.
template <class F>
void for_blocks(std::int64_t rows, const F& f) {
  for_pieces(rows, block_rows, [&](std::int64_t a, std::int64_t b) { f(a, b, a / block_rows); });
}

}  // namespace

std::int64_t norm_workspace_floats(std::int64_t rows, std::int64_t width) {
  return 2 * divide_up(rows, block_rows) * width;
}

template <class T>
void rmsnorm_forward(const T* x, std::int64_t x_ld, const T* weight, float eps, std::int64_t rows, std::int64_t width,
                     T* y, std::int64_t y_ld, float* rstd) {
  const NormLoops<T>& row = simd<T>();
  for_rows(rows, width, [=, &row](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r) {
      const float mean_square = row.squares(x + r * x_ld, 0, width) / static_cast<float>(width);
      rstd[r] = 1.0f / std::sqrt(mean_square + eps);
      row.scale(x + r * x_ld, 0, rstd[r], weight, nullptr, width, y + r * y_ld);
    }
  });
}

template <class T>
void rmsnorm_backward(const T* x, std::int64_t x_ld, const T* weight, const float* rstd, const T* dy,
                      std::int64_t dy_ld, std::int64_t rows, std::int64_t width, T* dx, std::int64_t dx_ld,
                      bool add_to_dx, float* d_weight, float* workspace) {
  const NormLoops<T>& row = simd<T>();
  for_blocks(rows, [=, &row](std::int64_t a, std::int64_t b, std::int64_t block) {
    float* sum = workspace + block * width;
    std::fill(sum, sum + width, 0.0f);
    for (std::int64_t r = a; r < b; ++r)
      row.backward(x + r * x_ld, 0, rstd[r], weight, dy + r * dy_ld, width, false, add_to_dx, dx + r * dx_ld, sum,
                   nullptr);
  });
  add_blocks(workspace, divide_up(rows, block_rows), width, width, d_weight);
}

template <class T>
void rmsnorm_heads_forward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, float eps, std::int64_t rows, T* y,
                           float* rstd) {
  for (std::int64_t head = 0; head < norms.heads(); ++head)
    rmsnorm_forward(x + head * norms.dim, ld, norms.weight(head), eps, rows, norms.dim, y + head * norms.dim, ld,
                    rstd + head * rows);
}

template <class T>
void rmsnorm_heads_backward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, const float* rstd, const T* dy,
                            std::int64_t rows, T* dx, float* d_query_weight, float* d_key_weight, float* workspace) {
  for (std::int64_t head = 0; head < norms.heads(); ++head) {
    const std::int64_t column = head * norms.dim;
    rmsnorm_backward(x + column, ld, norms.weight(head), rstd + head * rows, dy + column, ld, rows, norms.dim,
                     dx + column, ld, false, head < norms.queries ? d_query_weight : d_key_weight, workspace);
  }
}

template <class T>
void layernorm_forward(const T* x, const T* weight, const T* bias, float eps, std::int64_t rows, std::int64_t width,
                       T* y, float* mean, float* rstd) {
  const NormLoops<T>& row = simd<T>();
  const float share = static_cast<float>(width);
  for_rows(rows, width, [=, &row](std::int64_t a, std::int64_t b) {
    for (std::int64_t r = a; r < b; ++r) {
      const T* from = x + r * width;
      mean[r] = row.sum(from, width) / share;
      rstd[r] = 1.0f / std::sqrt(row.squares(from, mean[r], width) / share + eps);
      row.scale(from, mean[r], rstd[r], weight, bias, width, y + r * width);
    }
  });
}

template <class T>
void layernorm_backward(const T* x, const T* weight, const float* mean, const float* rstd, const T* dy,
                        std::int64_t rows, std::int64_t width, T* dx, bool add_to_dx, float* d_weight, float* d_bias,
                        float* workspace) {
  const NormLoops<T>& row = simd<T>();
  for_blocks(rows, [=, &row](std::int64_t a, std::int64_t b, std::int64_t block) {
    float* sum = workspace + 2 * block * width;
    std::fill(sum, sum + 2 * width, 0.0f);
    for (std::int64_t r = a; r < b; ++r)
      row.backward(x + r * width, mean[r], rstd[r], weight, dy + r * width, width, true, add_to_dx, dx + r * width, sum,
                   sum + width);
  });
  const std::int64_t blocks = divide_up(rows, block_rows);
  add_blocks(workspace, blocks, 2 * width, width, d_weight);
  add_blocks(workspace + width, blocks, 2 * width, width, d_bias);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                     \
  template void rmsnorm_forward<T>(const T*, std::int64_t, const T*, float, std::int64_t, std::int64_t, T*,       \
                                   std::int64_t, float*);                                                         \
  template void rmsnorm_backward<T>(const T*, std::int64_t, const T*, const float*, const T*, std::int64_t,       \
                                    std::int64_t, std::int64_t, T*, std::int64_t, bool, float*, float*);          \
  template void rmsnorm_heads_forward<T>(const HeadNorms<T>&, const T*, std::int64_t, float, std::int64_t, T*,    \
                                         float*);                                                                 \
  template void rmsnorm_heads_backward<T>(const HeadNorms<T>&, const T*, std::int64_t, const float*, const T*,    \
                                          std::int64_t, T*, float*, float*, float*);                              \
  template void layernorm_forward<T>(const T*, const T*, const T*, float, std::int64_t, std::int64_t, T*, float*, \
                                     float*);                                                                     \
  template void layernorm_backward<T>(const T*, const T*, const float*, const float*, const T*, std::int64_t,     \
                                      std::int64_t, T*, bool, float*, float*, float*);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels
#endif
