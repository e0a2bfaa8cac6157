// AdamW with int8 moments: a block is decoded and updated, its new moments wait in the first-level cache until their
// largest is known, and are encoded.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw_blocks.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

constexpr float most_exp_avg = 494.0f, most_exp_avg_sq = 126974.0f;

/// One block's moments before they are encoded, with the bits of the largest magnitudes.
struct NewMoments {
  HWY_ALIGN float m[moment_block_numel], v[moment_block_numel];
  std::uint32_t largest_m, largest_v;
};

/// Blocks from one element on, all of 256 elements.
template <class P, class G>
struct Blocks {
  Masters<P> master;
  std::int8_t* exp_avg;
  std::uint8_t* exp_avg_sq;
  const G* gradient;

  HWY_INLINE explicit Blocks(const AdamwRange& r)
      : master(r),
        exp_avg(static_cast<std::int8_t*>(r.exp_avg)),
        exp_avg_sq(static_cast<std::uint8_t*>(r.exp_avg_sq)),
        gradient(static_cast<const G*>(r.gradient)) {}

  HWY_INLINE void prefetch(std::int64_t i) const {
    prefetch_ahead<64>(master, i);
    prefetch_ahead<64>(exp_avg + i);
    prefetch_ahead<64>(exp_avg_sq + i);
    prefetch_ahead<64>(gradient + i);
  }

  /// Updates the parameters of the block at `first`; counts what diverged among the first `valid`.
  HWY_INLINE Bits update(const AdamwVectors& c, std::int64_t first, float scale_m, float scale_v, std::int64_t valid,
                         NewMoments& out) const {
    const U32 d;
    const std::int64_t step = lanes();
    const Vec sm = hn::Set(F32(), scale_m), sv = hn::Set(F32(), scale_v);
    const Vec offset_m = hn::Set(F32(), -2 * scale_m), offset_v = hn::Set(F32(), -2 * scale_v);
    Bits counts = hn::Zero(d), most_m = counts, most_v = counts;
    for (std::int64_t strip = 0; strip < moment_block_numel; strip += 64) {
      prefetch(first + strip);
      for (std::int64_t k = strip; k < strip + 64; k += step) {
        const std::int64_t i = first + k;
        Vec m = decode_lanes(exp_avg + i, sm, offset_m), v = decode_lanes(exp_avg_sq + i, sv, offset_v);
        const Vec w = c.update(master.load(i), &m, &v, load_lanes(gradient + i));
        master.store(w, i);
        hn::Store(m, F32(), out.m + k);
        hn::Store(v, F32(), out.v + k);
        most_m = hn::Max(most_m, hn::BitCast(d, hn::Abs(m)));
        most_v = hn::Max(most_v, hn::BitCast(d, v));
        const Bits bad = diverged_lanes(w);
        counts = hn::Add(counts, valid - k >= step ? bad : hn::IfThenElseZero(hn::FirstN(d, first_n(valid - k)), bad));
      }
    }
    out.largest_m = largest_lane(most_m);
    out.largest_v = largest_lane(most_v) & 0x7fffffffu;
    return counts;
  }

  static HWY_INLINE std::size_t first_n(std::int64_t n) { return static_cast<std::size_t>(HWY_MAX(n, 0)); }
};

/// Encodes the block's moments at m and v, and leaves their scales.
HWY_INLINE void encode_block(const NewMoments& block, const RoundingBits& random, std::int8_t* m, std::uint8_t* v,
                             float* scale_m, float* scale_v) {
  const BlockScale of_m(block.largest_m, most_exp_avg), of_v(block.largest_v, most_exp_avg_sq);
  const Vec per_m = hn::Set(F32(), of_m.per_scale), per_v = hn::Set(F32(), of_v.per_scale);
  for (std::int64_t k = 0; k < moment_block_numel; k += lanes()) {
    const Bits bits = random.at(k);
    encode_lanes(hn::Load(F32(), block.m + k), per_m, bits, m + k);
    encode_lanes(hn::Load(F32(), block.v + k), per_v, bits, v + k);
  }
  if (!of_m.finite) std::memset(m, 0, moment_block_numel);
  if (!of_v.finite) std::memset(v, 0, moment_block_numel);
  *scale_m = of_m.scale;
  *scale_v = of_v.scale;
}

/// A tensor's last block in whole length, so that it runs through the same code.
template <class T>
struct Padded {
  T data[moment_block_numel] = {};
  Padded(const void* from, std::int64_t count) { std::memcpy(data, from, static_cast<std::size_t>(count) * sizeof(T)); }
  void put_back(void* to, std::int64_t count) const {
    std::memcpy(to, data, static_cast<std::size_t>(count) * sizeof(T));
  }
};

template <class P, class G>
struct BlockLoop {
  const AdamwVectors c;
  RoundingBits random;
  NewMoments moments;

  explicit BlockLoop(const AdamwConstants& constants) : c(constants), random(constants.rounding_key) {}

  HWY_INLINE Bits update(const Blocks<P, G>& blocks, std::int64_t first, std::uint64_t block, std::int64_t valid,
                         float* scale_m, float* scale_v) {
    const Bits bad = blocks.update(c, first, *scale_m, *scale_v, valid, moments);
    random.seek(block);
    encode_block(moments, random, blocks.exp_avg + first, blocks.exp_avg_sq + first, scale_m, scale_v);
    return bad;
  }

  /// The first `count` elements of a block.
  Bits update_part(const Blocks<P, G>& blocks, std::int64_t first, std::uint64_t block, std::int64_t count,
                   float* scale_m, float* scale_v) {
    Padded<P> p(blocks.master.parameter + first, count);
    Padded<std::int8_t> m(blocks.exp_avg + first, count);
    Padded<std::uint8_t> v(blocks.exp_avg_sq + first, count);
    const Padded<G> g(blocks.gradient + first, count);
    std::int16_t* remainder = nullptr;
    if constexpr (sizeof(P) == 2) remainder = blocks.master.remainder + first;
    Padded<std::int16_t> r(remainder, remainder == nullptr ? 0 : count);
    AdamwRange part;
    part.parameter = p.data;
    part.remainder = r.data;
    part.exp_avg = m.data;
    part.exp_avg_sq = v.data;
    part.gradient = g.data;
    const Bits bad = update(Blocks<P, G>(part), 0, block, count, scale_m, scale_v);
    p.put_back(blocks.master.parameter + first, count);
    if (remainder != nullptr) r.put_back(remainder, count);
    m.put_back(blocks.exp_avg + first, count);
    v.put_back(blocks.exp_avg_sq + first, count);
    return bad;
  }
};

template <class P, class G>
std::uint64_t update_blocks(const AdamwConstants& constants, const AdamwRange& range) {
  const Blocks<P, G> blocks(range);
  BlockLoop<P, G> loop(constants);
  std::uint64_t block = range.first_index / moment_block_numel, diverged = 0;
  float *scale_m = range.exp_avg_scales, *scale_v = range.exp_avg_sq_scales;
  for (std::int64_t i = 0; i < range.numel; i += moment_block_numel, ++block, ++scale_m, ++scale_v) {
    const std::int64_t count = HWY_MIN(moment_block_numel, range.numel - i);
    diverged += total(count == moment_block_numel ? loop.update(blocks, i, block, count, scale_m, scale_v)
                                                  : loop.update_part(blocks, i, block, count, scale_m, scale_v));
  }
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
