#include <algorithm>

#include "kernels/cpu/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_EMBEDDING_TABLES
#define SLUICE_KERNELS_CPU_EMBEDDING_TABLES
template <class T>
struct EmbeddingLoops {
  void (*add)(const T* a, const T* b, T* out, std::int64_t n);
  void (*accumulate)(const T* x, float* sum, std::int64_t n);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n) {
  add_range(a, b, out, n);
}

template <class T>
void accumulate(const T* x, float* sum, std::int64_t n) {
  add_range(sum, x, sum, n);
}

template <class T>
constexpr EmbeddingLoops<T> loops{&add<T>, &accumulate<T>};

const EmbeddingLoops<float>* embedding_f32() { return &loops<float>; }
const EmbeddingLoops<bf16>* embedding_bf16() { return &loops<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(embedding_f32);
HWY_EXPORT(embedding_bf16);

template <class T>
const EmbeddingLoops<T>& simd();
template <>
const EmbeddingLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(embedding_f32)();
}
template <>
const EmbeddingLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(embedding_bf16)();
}

}  // namespace

template <class T>
void embed_forward(const std::int32_t* tokens, std::int64_t count, const Positions& positions, const T* table,
                   const T* places, std::int64_t width, T* out) {
  const auto add_row = simd<T>().add;
  for_rows(count, width, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t t = a; t < b; ++t) {
      const T* word = tokens[t] < 0 ? nullptr : table + tokens[t] * width;
      const T* place = places == nullptr ? nullptr : places + positions(t) * width;
      T* row = out + t * width;
      if (word != nullptr && place != nullptr)
        add_row(word, place, row, width);
      else if (const T* one = word != nullptr ? word : place; one != nullptr)
        std::copy_n(one, width, row);
      else
        std::fill_n(row, width, T{});
    }
  });
}

template <class T>
void embed_backward(const std::int32_t* tokens, std::int64_t count, const Positions& positions, const T* d_out,
                    std::int64_t width, float* d_table, float* d_places) {
  const auto accumulate = simd<T>().accumulate;
  // Threads share out columns, so that every row of the table sees its tokens in order whatever the team's size.
  constexpr std::int64_t columns = 64;
  for_pieces(width, columns, [=](std::int64_t a, std::int64_t b) {
    for (std::int64_t t = 0; t < count; ++t) {
      const T* row = d_out + t * width + a;
      if (tokens[t] >= 0) accumulate(row, d_table + tokens[t] * width + a, b - a);
      if (d_places != nullptr) accumulate(row, d_places + positions(t) * width + a, b - a);
    }
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                          \
  template void embed_forward<T>(const std::int32_t*, std::int64_t, const Positions&, const T*, const T*,              \
                                 std::int64_t, T*);                                                                    \
  template void embed_backward<T>(const std::int32_t*, std::int64_t, const Positions&, const T*, std::int64_t, float*, \
                                  float*);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels
#endif
