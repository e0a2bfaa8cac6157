#include <cmath>
#include <limits>

#include "kernels/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_merge.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_ATTENTION_MERGE_TABLES
#define SLUICE_KERNELS_CPU_ATTENTION_MERGE_TABLES
/// The loops of one SIMD target over one head's row.
template <class T>
struct MergeLoops {
  void (*set)(const T* part, float* sum, std::int64_t n);
  void (*merge)(const T* part, float kept, float added, float* sum, std::int64_t n);
};
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

template <class T>
void set(const T* part, float* sum, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR { io.store(io.load(part + i), sum + i); });
}

/// sum = sum * kept + part * added. Not fused: every target has the same bits.
template <class T>
void merge(const T* part, float kept, float added, float* sum, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    const Vec before = hn::Mul(io.load(sum + i), hn::Set(F32(), kept));
    io.store(hn::Add(before, hn::Mul(io.load(part + i), hn::Set(F32(), added))), sum + i);
  });
}

template <class T>
constexpr MergeLoops<T> loops{&set<T>, &merge<T>};

const MergeLoops<float>* merge_f32() { return &loops<float>; }
const MergeLoops<bf16>* merge_bf16() { return &loops<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(merge_f32);
HWY_EXPORT(merge_bf16);

template <class T>
const MergeLoops<T>& simd();
template <>
const MergeLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(merge_f32)();
}
template <>
const MergeLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(merge_bf16)();
}

constexpr float nothing_seen = -std::numeric_limits<float>::infinity();

/// `part_lse` is not minus infinity; `lse` may be, and its row keeps nothing then. NaN in either makes all NaN.
template <class T>
void merge_row(const MergeLoops<T>& loops, const T* part, float part_lse, std::int64_t n, float* sum, float& lse) {
  const float most = lse > part_lse ? lse : part_lse;
  const float kept = std::exp(lse - most), added = std::exp(part_lse - most), total = kept + added;
  loops.merge(part, kept / total, added / total, sum, n);
  lse = most + std::log(total);
}

}  // namespace

template <class T>
void attention_merge(const AttentionShape& s, const T* part, const float* part_lse, bool first, float* sum,
                     float* lse) {
  const MergeLoops<T>& loops = simd<T>();
  for_rows(s.batch * s.queries, s.heads * s.head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      for (std::int64_t head = 0; head < s.heads; ++head) {
        const std::int64_t at = (token / s.queries * s.heads + head) * s.queries + token % s.queries;
        const T* row = part + token * s.out_stride + head * s.head_dim;
        float* row_sum = sum + (token * s.heads + head) * s.head_dim;
        if (first) {
          loops.set(row, row_sum, s.head_dim);
          lse[at] = part_lse[at];
        } else if (part_lse[at] != nothing_seen) {
          merge_row(loops, row, part_lse[at], s.head_dim, row_sum, lse[at]);
        }
      }
  });
}

template void attention_merge<float>(const AttentionShape&, const float*, const float*, bool, float*, float*);
template void attention_merge<bf16>(const AttentionShape&, const bf16*, const float*, bool, float*, float*);

}  // namespace sluice::kernels
#endif
