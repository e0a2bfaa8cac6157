// AdamW with moments that stand for themselves: fp32, or bf16 rounded stochastically.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw_elements.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// What rounds the moments of type M.
template <class M>
struct Rounder;

template <>
struct Rounder<float> {
  explicit Rounder(std::uint64_t) {}
  HWY_INLINE void seek(std::uint64_t) {}
  HWY_INLINE void store(Vec m, Vec v, std::int64_t, float* exp_avg, float* exp_avg_sq) const {
    store_lanes(m, exp_avg);
    store_lanes(v, exp_avg_sq);
  }
};

template <>
struct Rounder<bf16> {
  RoundingBits<> random;
  explicit Rounder(std::uint64_t key) : random(key) {}
  HWY_INLINE void seek(std::uint64_t block) { random.seek(block); }
  HWY_INLINE void store(Vec m, Vec v, std::int64_t lane, bf16* exp_avg, bf16* exp_avg_sq) const {
    store_rounded(m, v, random.at(lane), exp_avg, exp_avg_sq);
  }
};

/// A stretch whose element 0 is element `lane` of a block.
template <class P, class M, class G>
struct Elements {
  Masters<P> master;
  M *exp_avg, *exp_avg_sq;
  const G* gradient;

  HWY_INLINE explicit Elements(const AdamwRange& r)
      : master(r),
        exp_avg(static_cast<M*>(r.exp_avg)),
        exp_avg_sq(static_cast<M*>(r.exp_avg_sq)),
        gradient(static_cast<const G*>(r.gradient)) {}

  /// n vectors, of which `valid` elements count.
  template <int n>
  HWY_INLINE void update(const AdamwVectors& c, const Rounder<M>& rounder, std::int64_t lane, std::int64_t i,
                         std::int64_t valid, std::uint64_t& diverged) const {
    Vec m[n], v[n], x[n];  // x: root, direction, master
    for (int j = 0; j < n; ++j) {
      const std::int64_t at = i + j * lanes();
      m[j] = load_wide(exp_avg + at);
      v[j] = load_wide(exp_avg_sq + at);
      c.average(load_wide(gradient + at), &m[j], &v[j]);
      x[j] = hn::Sqrt(v[j]);
    }
    for (int j = 0; j < n; ++j) x[j] = c.direction(m[j], x[j]);
    for (int j = 0; j < n; ++j) {  // while the quotients are not ready
      const std::int64_t at = i + j * lanes();
      rounder.store(m[j], v[j], lane + j * lanes(), exp_avg + at, exp_avg_sq + at);
    }
    for (int j = 0; j < n; ++j) x[j] = c.apply(master.load(i + j * lanes()), x[j]);
    master.store(x, i, valid, diverged);
  }

  HWY_INLINE void update_tail(const AdamwVectors& c, const Rounder<M>& rounder, std::int64_t lane, std::int64_t i,
                              std::int64_t count, std::uint64_t& diverged) const {
    Tail<P> p(master.parameter + i, count);
    Tail<M> m(exp_avg + i, count), v(exp_avg_sq + i, count);
    const Tail<G> g(gradient + i, count);
    std::int16_t* remainder = nullptr;
    if constexpr (sizeof(P) == 2) remainder = master.remainder + i;
    Tail<std::int16_t> r(remainder, remainder == nullptr ? 0 : count);
    AdamwRange part;
    part.parameter = p.data;
    part.remainder = r.data;
    part.exp_avg = m.data;
    part.exp_avg_sq = v.data;
    part.gradient = g.data;
    Elements(part).template update<1>(c, rounder, lane, 0, count, diverged);
    p.put_back(master.parameter + i, count);
    if (remainder != nullptr) r.put_back(remainder, count);
    m.put_back(exp_avg + i, count);
    v.put_back(exp_avg_sq + i, count);
  }
};

/// Elements begin to end of the range, of which the first is `lane` of its block.
template <class P, class M, class G>
HWY_INLINE void update_stretch(const AdamwVectors& c, const Rounder<M>& rounder, const Elements<P, M, G>& elements,
                               Ahead& ahead, std::int64_t lane, std::int64_t begin, std::int64_t end,
                               std::uint64_t& diverged) {
  const std::int64_t step = lanes(), to_lane = lane - begin;
  std::int64_t i = begin;
  for (; i + strip_numel <= end; i += strip_numel) {
    ahead.strip<element_bytes<P, M, G>>();
    for (std::int64_t k = i; k < i + strip_numel; k += group * step)
      elements.template update<group>(c, rounder, k + to_lane, k, group * step, diverged);
  }
  for (; i + step <= end; i += step) elements.template update<1>(c, rounder, i + to_lane, i, step, diverged);
  if (i < end) elements.update_tail(c, rounder, i + to_lane, i, end - i, diverged);
}

template <class P, class M, class G>
std::uint64_t update_elements(const AdamwConstants& constants, const AdamwRange& range) {
  const AdamwVectors c(constants);
  const Elements<P, M, G> elements(range);
  Rounder<M> rounder(constants.rounding_key);
  Ahead ahead(elements.master, elements.exp_avg, elements.exp_avg_sq, elements.gradient);
  std::uint64_t diverged = 0;
  if constexpr (sizeof(M) == 4) {
    update_stretch(c, rounder, elements, ahead, 0, 0, range.numel, diverged);
    return diverged;
  }
  for (std::int64_t i = 0; i < range.numel;) {
    const std::uint64_t index = range.first_index + static_cast<std::uint64_t>(i);
    const auto lane = static_cast<std::int64_t>(index % moment_block_numel);
    const std::int64_t end = HWY_MIN(range.numel, i + moment_block_numel - lane);
    rounder.seek(index / moment_block_numel);
    update_stretch(c, rounder, elements, ahead, lane, i, end, diverged);
    i = end;
  }
  return diverged;
}

template <class M>
constexpr AdamwLoops loops_of{{{&update_elements<float, M, float>, &update_elements<float, M, bf16>},
                               {&update_elements<bf16, M, float>, &update_elements<bf16, M, bf16>}}};
const AdamwLoops* loops_f32() { return &loops_of<float>; }
const AdamwLoops* loops_bf16() { return &loops_of<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {

HWY_EXPORT(loops_f32);
HWY_EXPORT(loops_bf16);

const AdamwLoops& adamw_loops_f32() { return *HWY_DYNAMIC_DISPATCH(loops_f32)(); }
const AdamwLoops& adamw_loops_bf16() { return *HWY_DYNAMIC_DISPATCH(loops_bf16)(); }

}  // namespace sluice::kernels
#endif
