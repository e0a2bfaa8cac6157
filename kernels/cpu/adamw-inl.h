// What all loops of AdamW share, a vector at a time. Compiled once per SIMD target.
#if defined(SLUICE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_ADAMW_INL_H_
#undef SLUICE_KERNELS_CPU_ADAMW_INL_H_
#else
#define SLUICE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/exact_fma-inl.h"
#include "kernels/cpu/master-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

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

  // The update of one vector in three stages; this sequence of operations is the contract. A group of vectors goes
  // through each stage together: square root and quotient take so long that what waits for them would fill the
  // scheduler, and no other vector's work would be found.
  HWY_INLINE void average(Vec gradient, Vec* exp_avg, Vec* exp_avg_sq) const {
    const Vec g = hn::Mul(gradient, scale), m = *exp_avg;
    *exp_avg = exact_fma(one_minus_beta1, hn::Sub(g, m), m);
    *exp_avg_sq = exact_fma(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, *exp_avg_sq));
  }
  HWY_INLINE Vec direction(Vec exp_avg, Vec root) const {
    return hn::Div(exp_avg, exact_fma(root, root_correction2, eps));
  }
  HWY_INLINE Vec apply(Vec master, Vec direction) const {
    return exact_fma(minus_rate, direction, hn::Mul(master, keep));
  }
};

/// Vectors that are updated together.
constexpr int group = 4;

/// Adds the lanes below `valid` whose value is NaN, infinite or would round to infinity as bf16. In a run that goes
/// well there is none: a branch that is never taken costs less than counting. True where there may be one.
template <int n>
HWY_INLINE bool count_diverged(const Vec (&masters)[n], std::int64_t valid, std::uint64_t& count) {
  const I32 d;
  // All bits of the group: without those of 2 and up, as weights mostly are, nothing can be wrong.
  Bits any = hn::BitCast(U32(), masters[0]);
  for (int j = 1; j < n; ++j) any = hn::Or(any, hn::BitCast(U32(), masters[j]));
  if (HWY_LIKELY(hn::AllFalse(F32(), hn::MaskFromVec(hn::BitCast(F32(), hn::ShiftLeft<1>(any)))))) return false;
  auto largest = hn::BitCast(d, hn::Abs(masters[0]));
  for (int j = 1; j < n; ++j) largest = hn::Max(largest, hn::BitCast(d, hn::Abs(masters[j])));
  const auto bound = hn::Set(d, 0x7f7f7fff);
  if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(largest, bound)))) return false;
  for (int j = 0; j < n; ++j) {
    const std::int64_t counts = HWY_MAX(0, valid - j * lanes());
    const auto bad = hn::Gt(hn::BitCast(d, hn::Abs(masters[j])), bound);
    count += hn::CountTrue(d, hn::And(bad, hn::FirstN(d, static_cast<std::size_t>(counts))));
  }
  return true;
}

/// A range's parameter: fp32 that is its own master, or bf16 with remainder.
template <class P>
struct Masters;

template <>
struct Masters<float> {
  float* parameter;
  HWY_INLINE explicit Masters(const AdamwRange& r) : parameter(static_cast<float*>(r.parameter)) {}
  HWY_INLINE Vec load(std::int64_t i) const { return load_lanes(parameter + i); }
  /// Counts what diverged among the first `valid` elements.
  template <int n>
  HWY_INLINE void store(const Vec (&w)[n], std::int64_t i, std::int64_t valid, std::uint64_t& diverged) const {
    count_diverged(w, valid, diverged);
    for (int j = 0; j < n; ++j) store_lanes(w[j], parameter + i + j * lanes());
  }
};

template <>
struct Masters<bf16> {
  bf16* parameter;
  std::int16_t* remainder;
  HWY_INLINE explicit Masters(const AdamwRange& r)
      : parameter(static_cast<bf16*>(r.parameter)), remainder(r.remainder) {}
  HWY_INLINE Vec load(std::int64_t i) const { return hn::BitCast(F32(), join_lanes(parameter + i, remainder + i)); }
  template <int n>
  HWY_INLINE void store(const Vec (&w)[n], std::int64_t i, std::int64_t valid, std::uint64_t& diverged) const {
    if (HWY_UNLIKELY(count_diverged(w, valid, diverged))) {
      for (int j = 0; j < n; ++j)
        split_lanes(hn::BitCast(U32(), w[j]), parameter + i + j * lanes(), remainder + i + j * lanes());
      return;
    }
    for (int j = 0; j < n; ++j)
      split_number(hn::BitCast(U32(), w[j]), parameter + i + j * lanes(), remainder + i + j * lanes());
  }
};

/// Elements between two calls of Ahead::strip: a whole number of groups on every target.
constexpr std::int64_t strip_numel = 64;

/// Asks for cache lines of the arrays ahead of their use: while one chunk is updated, all lines of the next, one array
/// after the other, at an even pace. So memory sees a few runs of one or two KB from open pages instead of lines of
/// five arrays in turns, which the hardware's prefetchers also lose at each border of a page. The lines' addresses are
/// a table, since branches between arrays would be mispredicted, which costs as much as is gained. Reaching beyond the
/// arrays' ends is harmless: prefetches do not fault.
class Ahead {
 public:
  template <class P, class M, class G>
  HWY_INLINE Ahead(const Masters<P>& master, const M* exp_avg, const void* exp_avg_sq, const G* gradient) {
    add(exp_avg, sizeof(M));
    add(exp_avg_sq, sizeof(M));
    add(master.parameter, sizeof(P));
    if constexpr (sizeof(P) == 2) add(master.remainder, sizeof(std::int16_t));
    add(gradient, sizeof(G));
  }
  /// Along with the update of the next strip; a strip of 64 elements has as many lines as an element has bytes.
  template <int element_bytes>
  HWY_INLINE void strip() {
    for (int k = at_; k < at_ + element_bytes; ++k) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on pointers may not reach beyond the end.
      hwy::Prefetch(reinterpret_cast<const char*>(line_[k]));
      line_[k] += chunk_bytes_[k];
    }
    at_ = at_ + element_bytes == lines_ ? 0 : at_ + element_bytes;
  }

 private:
  static constexpr std::uintptr_t chunk_numel = 8 * strip_numel, line_bytes = 64;
  HWY_INLINE void add(const void* p, std::uintptr_t element_bytes) {
    const std::uintptr_t bytes = chunk_numel * element_bytes;
    for (std::uintptr_t line = 0; line < bytes; line += line_bytes) {
      line_[lines_] = reinterpret_cast<std::uintptr_t>(p) + bytes + line;
      chunk_bytes_[lines_++] = bytes;
    }
  }
  std::uintptr_t line_[8 * 16], chunk_bytes_[8 * 16];  ///< of elements with 16 bytes, the most there are
  int lines_ = 0, at_ = 0;
};

/// Of all arrays, per element: what Ahead::strip takes.
template <class P, class M, class G>
constexpr int element_bytes = static_cast<int>(4 + 2 * sizeof(M) + sizeof(G));  // 4: fp32, or bf16 with remainder

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
