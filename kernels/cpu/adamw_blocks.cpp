// AdamW with int8 moments: a block is decoded and updated, its new moments wait in the first-level cache until their
// largest is known, and are encoded along with the update of the next block. So the divider of one and the integer
// arithmetic of the other overlap, and nothing waits for the scales.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw_blocks.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// One block's moments before they are encoded, with the bits of the largest magnitudes.
struct NewMoments {
  HWY_ALIGN float m[moment_block_numel], v[moment_block_numel];
  std::uint32_t largest_m = 0, largest_v = 0;
};

/// The update of the block that begins at element `first` of the arrays, all 256 elements of it.
template <class P, class G>
class BlockUpdate {
 public:
  HWY_INLINE BlockUpdate(const AdamwConstants& constants, const AdamwRange& r)
      : c_(constants),
        gradient_to_m_(hn::Set(F32(), constants.gradient_to_m)),
        gradient_to_root_v_(hn::Set(F32(), constants.gradient_to_root_v)),
        beta1_(constants.beta1),
        beta2_(constants.beta2),
        master_(r),
        exp_avg_(static_cast<const std::int8_t*>(r.exp_avg)),
        exp_avg_sq_(static_cast<const std::uint8_t*>(r.exp_avg_sq)),
        gradient_(static_cast<const G*>(r.gradient)) {}

  HWY_INLINE void begin(float scale_m, float scale_v) {
    scale_m *= beta1_;
    scale_v *= beta2_;
    scale_m_ = hn::Set(F32(), scale_m);
    scale_v_ = hn::Set(F32(), scale_v);
    offset_m_ = hn::Set(F32(), -2 * scale_m);
    offset_v_ = hn::Set(F32(), -2 * scale_v);
    largest_m_ = largest_v_ = hn::Zero(U32());
  }
  /// Averages of a group of vectors from element i + k on, where the block begins at i; x: the roots.
  HWY_INLINE void averages(std::int64_t i, std::int64_t k, NewMoments& out, Vec (&m)[group], Vec (&x)[group]) {
    for (int j = 0; j < group; ++j) {
      const std::int64_t in_block = k + j * lanes(), at = i + in_block;
      const Vec g = load_wide(gradient_ + at), h = hn::Mul(gradient_to_root_v_, g);
      m[j] = exact_fma(gradient_to_m_, g, decode_lanes(exp_avg_ + at, scale_m_, offset_m_));
      const Vec v = exact_fma(h, h, decode_lanes(exp_avg_sq_ + at, scale_v_, offset_v_));
      hn::Store(m[j], F32(), out.m + in_block);
      hn::Store(v, F32(), out.v + in_block);
      largest_m_ = hn::Max(largest_m_, hn::BitCast(U32(), hn::Abs(m[j])));
      largest_v_ = hn::Max(largest_v_, hn::BitCast(U32(), v));
      x[j] = hn::Sqrt(v);
    }
  }
  HWY_INLINE void directions(const Vec (&m)[group], Vec (&x)[group]) const {
    for (int j = 0; j < group; ++j) x[j] = c_.direction(m[j], x[j]);
  }
  /// The parameters of the group, of which `valid` elements count.
  HWY_INLINE void apply(std::int64_t at, std::int64_t valid, Vec (&x)[group], std::uint64_t& diverged) const {
    for (int j = 0; j < group; ++j) x[j] = c_.apply(master_.load(at + j * lanes()), x[j]);
    master_.store(x, at, valid, diverged);
  }
  HWY_INLINE void end(NewMoments& out) const {
    out.largest_m = largest_lane(largest_m_);
    out.largest_v = largest_lane(largest_v_) & 0x7fffffffu;  // a NaN may have a sign
  }

 private:
  const AdamwVectors c_;
  const Vec gradient_to_m_, gradient_to_root_v_;
  const float beta1_, beta2_;
  const Masters<P> master_;
  const std::int8_t* const exp_avg_;
  const std::uint8_t* const exp_avg_sq_;
  const G* const gradient_;
  Vec scale_m_ = hn::Zero(F32()), scale_v_ = scale_m_, offset_m_ = scale_m_, offset_v_ = scale_m_;
  Bits largest_m_ = hn::Zero(U32()), largest_v_ = largest_m_;
};

/// Where the codes of one block go.
struct BlockCodes {
  std::int8_t* exp_avg;
  std::uint8_t* exp_avg_sq;
  float *scale_m, *scale_v;
};

class BlockEncoder {
 public:
  HWY_INLINE explicit BlockEncoder(std::uint64_t key) : random_m_(key), random_v_(key) {}
  HWY_INLINE void begin(const NewMoments& moments, std::uint64_t block, const BlockCodes& to) {
    const BlockScale m(moments.largest_m, most_exp_avg), v(moments.largest_v, most_exp_avg_sq);
    random_m_.seek(block);
    random_v_.seek(block);
    per_m_ = hn::Set(F32(), m.per_scale);
    per_v_ = hn::Set(F32(), v.per_scale);
    *to.scale_m = m.scale;
    *to.scale_v = v.scale;
    usual_m_ = m.usual;
    usual_v_ = v.usual;
  }
  HWY_INLINE void group_at(const NewMoments& moments, std::int64_t k, const BlockCodes& to) const {
    encode_group(moments.m + k, per_m_, random_m_, k, to.exp_avg + k);
    encode_group(moments.v + k, per_v_, random_v_, k, to.exp_avg_sq + k);
  }
  HWY_INLINE void end(const BlockCodes& to) const {
    if (HWY_UNLIKELY(!usual_m_)) std::memset(to.exp_avg, 0, moment_block_numel);
    if (HWY_UNLIKELY(!usual_v_)) std::memset(to.exp_avg_sq, 0, moment_block_numel);
  }

 private:
  RoundingBits<0, code_shift> random_m_;
  RoundingBits<32 - code_shift, code_shift> random_v_;
  Vec per_m_ = hn::Zero(F32()), per_v_ = per_m_;
  bool usual_m_ = true, usual_v_ = true;
};

HWY_INLINE void encode_block(BlockEncoder& encoder, const NewMoments& moments, std::uint64_t block,
                             const BlockCodes& to) {
  encoder.begin(moments, block, to);
  for (std::int64_t k = 0; k < moment_block_numel; k += group * lanes()) encoder.group_at(moments, k, to);
  encoder.end(to);
}

/// The first `count` elements of a block, on copies in whole length, so that they run through the same code.
template <class P, class G>
std::uint64_t update_part(const AdamwConstants& constants, const AdamwRange& r, std::int64_t first,
                          std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  P p[moment_block_numel] = {};
  std::int16_t remainder[moment_block_numel] = {};
  std::int8_t m[moment_block_numel] = {};
  std::uint8_t v[moment_block_numel] = {};
  G g[moment_block_numel] = {};
  P* const to_p = static_cast<P*>(r.parameter) + first;
  std::int8_t* const to_m = static_cast<std::int8_t*>(r.exp_avg) + first;
  std::uint8_t* const to_v = static_cast<std::uint8_t*>(r.exp_avg_sq) + first;
  const std::int64_t block = first / moment_block_numel;
  std::memcpy(p, to_p, n * sizeof(P));
  if (sizeof(P) == 2) std::memcpy(remainder, r.remainder + first, n * sizeof(std::int16_t));
  std::memcpy(m, to_m, n);
  std::memcpy(v, to_v, n);
  std::memcpy(g, static_cast<const G*>(r.gradient) + first, n * sizeof(G));

  AdamwRange copy = r;
  copy.parameter = p;
  copy.remainder = remainder;
  copy.exp_avg = m;
  copy.exp_avg_sq = v;
  copy.gradient = g;
  const BlockCodes codes{m, v, r.exp_avg_scales + block, r.exp_avg_sq_scales + block};
  BlockUpdate<P, G> update(constants, copy);
  BlockEncoder encoder(constants.rounding_key);
  NewMoments moments;
  std::uint64_t diverged = 0;
  update.begin(*codes.scale_m, *codes.scale_v);
  for (std::int64_t k = 0; k < moment_block_numel; k += group * lanes()) {
    Vec averages[group], x[group];
    update.averages(0, k, moments, averages, x);
    update.directions(averages, x);
    update.apply(k, count - k, x, diverged);
  }
  update.end(moments);
  encode_block(encoder, moments, r.first_index / moment_block_numel + static_cast<std::uint64_t>(block), codes);

  std::memcpy(to_p, p, n * sizeof(P));
  if (sizeof(P) == 2) std::memcpy(r.remainder + first, remainder, n * sizeof(std::int16_t));
  std::memcpy(to_m, m, n);
  std::memcpy(to_v, v, n);
  return diverged;
}

/// Whole blocks from the range's beginning. While the divider works on a group's roots, the group before it gets its
/// parameters; while it works on the quotients, a group of the block before is encoded.
template <class P, class G>
HWY_INLINE std::uint64_t update_whole(const AdamwConstants& constants, const AdamwRange& r, std::int64_t blocks) {
  BlockUpdate<P, G> update(constants, r);
  BlockEncoder encoder(constants.rounding_key);
  Ahead ahead(Masters<P>(r), static_cast<std::int8_t*>(r.exp_avg), r.exp_avg_sq, static_cast<const G*>(r.gradient));
  NewMoments moments[2];
  static_assert(group == code_group);
  Vec waiting[group] = {hn::Zero(F32()), hn::Zero(F32()), hn::Zero(F32()), hn::Zero(F32())};
  std::int64_t waiting_at = -1;
  std::uint64_t diverged = 0;
  const std::uint64_t first_block = r.first_index / moment_block_numel;
  const auto codes = [&](std::int64_t block) {
    return BlockCodes{static_cast<std::int8_t*>(r.exp_avg) + block * moment_block_numel,
                      static_cast<std::uint8_t*>(r.exp_avg_sq) + block * moment_block_numel, r.exp_avg_scales + block,
                      r.exp_avg_sq_scales + block};
  };
  for (std::int64_t block = 0; block < blocks; ++block) {
    NewMoments &out = moments[block & 1], &before = moments[1 - (block & 1)];
    const BlockCodes last = codes(HWY_MAX(block - 1, 0));
    update.begin(r.exp_avg_scales[block], r.exp_avg_sq_scales[block]);
    if (block > 0) encoder.begin(before, first_block + static_cast<std::uint64_t>(block) - 1, last);
    const std::int64_t first = block * moment_block_numel;
    for (std::int64_t k = 0; k < moment_block_numel; k += group * lanes()) {
      if (k % strip_numel == 0) ahead.strip<element_bytes<P, std::int8_t, G>>();
      Vec m[group], x[group];
      update.averages(first, k, out, m, x);
      if (waiting_at >= 0) update.apply(waiting_at, group * lanes(), waiting, diverged);
      update.directions(m, x);
      if (block > 0) encoder.group_at(before, k, last);
      for (int j = 0; j < group; ++j) waiting[j] = x[j];
      waiting_at = first + k;
    }
    update.end(out);
    if (block > 0) encoder.end(last);
  }
  if (waiting_at >= 0) update.apply(waiting_at, group * lanes(), waiting, diverged);
  if (blocks > 0)
    encode_block(encoder, moments[(blocks - 1) & 1], first_block + static_cast<std::uint64_t>(blocks) - 1,
                 codes(blocks - 1));
  return diverged;
}

template <class P, class G>
std::uint64_t update_blocks(const AdamwConstants& constants, const AdamwRange& range) {
  const std::int64_t whole = range.numel / moment_block_numel, rest = range.numel % moment_block_numel;
  std::uint64_t diverged = update_whole<P, G>(constants, range, whole);
  if (rest > 0) diverged += update_part<P, G>(constants, range, whole * moment_block_numel, rest);
  return diverged;
}

constexpr AdamwLoops all_int8{{{&update_blocks<float, float>, &update_blocks<float, bf16>},
                               {&update_blocks<bf16, float>, &update_blocks<bf16, bf16>}}};
const AdamwLoops* loops_int8() { return &all_int8; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {

HWY_EXPORT(loops_int8);

const AdamwLoops& adamw_loops_int8() { return *HWY_DYNAMIC_DISPATCH(loops_int8)(); }

}  // namespace sluice::kernels
#endif
