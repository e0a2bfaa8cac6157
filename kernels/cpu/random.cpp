#include "kernels/cpu/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "sluice/random.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_RANDOM_CHUNK
#define SLUICE_KERNELS_CPU_RANDOM_CHUNK
/// Numbers that are made together. Chunks start at multiples of it, so that the lower half of the Philox counter does
/// not overflow within one.
constexpr std::int64_t random_chunk = 4096;
constexpr std::int64_t random_blocks = random_chunk / 4;
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

using U64 = hn::Repartition<std::uint64_t, U32>;
using Bits = hn::Vec<U32>;
using Wide = hn::Vec<U64>;

HWY_INLINE Wide times(Wide word, std::uint32_t factor) {
  return hn::MulEven(hn::BitCast(U32(), word), hn::Set(U32(), factor));
}

/// The four words of one block per 64-bit lane. Only the lower half of a lane is looked at.
struct Block {
  Wide c[4];

  HWY_INLINE Block(Wide index, std::uint64_t index_high, std::uint64_t stream)
      : c{index, hn::Set(U64(), index_high), hn::Set(U64(), stream), hn::Set(U64(), stream >> 32)} {}

  HWY_INLINE void round(std::uint32_t k0, std::uint32_t k1) {
    const Wide p0 = times(c[0], philox_factors[0]), p1 = times(c[2], philox_factors[1]);
    c[0] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c[1]), hn::Set(U64(), k0));
    c[1] = p1;
    c[2] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c[3]), hn::Set(U64(), k1));
    c[3] = p0;
  }
};

/// log(u) for normal u > 0: u = 2^k m with m in [sqrt(1/2), sqrt(2)), log(m) = 2 artanh((m - 1) / (m + 1)).
HWY_INLINE Vec log_lanes(Vec u) {
  const F32 d;
  const auto bits = hn::BitCast(I32(), u);
  const auto k = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(I32(), 0x3f3504f3)));
  const Vec m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(k))), one = hn::Set(d, 1.0f);
  const Vec s = hn::Div(hn::Sub(m, one), hn::Add(m, one)), q = hn::Mul(s, s);
  Vec series = hn::Set(d, 2.0f / 9);
  for (const float c : {2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f}) series = hn::Add(hn::Mul(series, q), hn::Set(d, c));
  return hn::Add(hn::Mul(hn::ConvertTo(d, k), hn::Set(d, 0.693147181f)), hn::Mul(series, s));
}

/// Taylor's series, for |x| <= pi / 4.
HWY_INLINE void sine_and_cosine(Vec x, Vec* sine, Vec* cosine) {
  const F32 d;
  const Vec q = hn::Mul(x, x);
  Vec s = hn::Set(d, 1.0f / 362880), c = hn::Set(d, -1.0f / 3628800);
  for (const float f : {-1.0f / 5040, 1.0f / 120, -1.0f / 6, 1.0f}) s = hn::Add(hn::Mul(s, q), hn::Set(d, f));
  for (const float f : {1.0f / 40320, -1.0f / 720, 1.0f / 24, -1.0f / 2, 1.0f})
    c = hn::Add(hn::Mul(c, q), hn::Set(d, f));
  *sine = hn::Mul(s, x);
  *cosine = c;
}

/// Two numbers of two words: Box and Muller.
HWY_INLINE void normal_pair(Bits radius_word, Bits angle_word, Vec deviation, Vec* first, Vec* second) {
  const F32 d;
  const U32 du;
  const Vec whole = hn::ConvertTo(d, hn::BitCast(I32(), hn::ShiftRight<1>(radius_word)));
  const Vec u = hn::Mul(hn::Add(whole, hn::Set(d, 0.5f)), hn::Set(d, 0x1p-31f));
  const Vec radius = hn::Mul(hn::Sqrt(hn::Mul(log_lanes(u), hn::Set(d, -2.0f))), deviation);
  // The angle is a number of quarter turns, which exchange sine and cosine and choose their signs, and the rest.
  const Bits quarters = hn::Add(angle_word, hn::Set(du, 1u << 29));
  const Vec rest = hn::ConvertTo(d, hn::BitCast(I32(), hn::ShiftLeft<2>(angle_word)));
  Vec sine, cosine;
  sine_and_cosine(hn::Mul(rest, hn::Set(d, 1.57079633f * 0x1p-32f)), &sine, &cosine);
  const auto exchange = hn::RebindMask(d, hn::TestBit(quarters, hn::Set(du, 1u << 30)));
  const Bits sign = hn::Set(du, 1u << 31);
  const Bits first_sign = hn::And(hn::Xor(quarters, hn::ShiftLeft<1>(quarters)), sign);
  const auto turn = [=](Vec v, Bits to)
                        HWY_ATTR { return hn::BitCast(d, hn::Xor(hn::BitCast(du, hn::Mul(radius, v)), to)); };
  *first = turn(hn::IfThenElse(exchange, sine, cosine), first_sign);
  *second = turn(hn::IfThenElse(exchange, cosine, sine), hn::And(quarters, sign));
}

/// The chunk that starts with block `block`, into out[random_chunk].
void normal_chunk(std::uint64_t key, std::uint64_t stream, std::uint64_t block, float deviation, float* out) {
  const std::int64_t blocks = lanes();
  const Vec scale = hn::Set(F32(), deviation);
  const Wide every_other = hn::ShiftLeft<1>(hn::Iota(U64(), 0));
  for (std::int64_t i = 0; i < random_blocks; i += blocks) {
    const std::uint64_t at = block + static_cast<std::uint64_t>(i);
    Block even(hn::Add(every_other, hn::Set(U64(), at)), at >> 32, stream);
    Block odd(hn::Add(every_other, hn::Set(U64(), at + 1)), at >> 32, stream);
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < philox_rounds; ++round) {
      even.round(k0, k1);
      odd.round(k0, k1);
      k0 += philox_steps[0];
      k1 += philox_steps[1];
    }
    const auto word = [&](int w) HWY_ATTR {
      return hn::OddEven(hn::BitCast(U32(), hn::ShiftLeft<32>(odd.c[w])), hn::BitCast(U32(), even.c[w]));
    };
    Vec n0, n1, n2, n3;
    normal_pair(word(0), word(1), scale, &n0, &n1);
    normal_pair(word(2), word(3), scale, &n2, &n3);
    hn::StoreInterleaved4(n0, n1, n2, n3, F32(), out + 4 * i);
  }
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {

HWY_EXPORT(normal_chunk);

void fill_normal(std::uint64_t key, std::uint64_t stream, std::uint64_t first, float deviation, std::span<float> out) {
  const std::uint64_t last = first + out.size(), chunk = random_chunk;
  const std::uint64_t first_chunk = first / chunk;
  const auto chunks = static_cast<std::int64_t>((last + chunk - 1) / chunk - first_chunk);
  for_pieces(chunks, 1, [&](std::int64_t c, std::int64_t) {
    const std::uint64_t begin = (first_chunk + static_cast<std::uint64_t>(c)) * chunk;
    const std::uint64_t a = std::max(begin, first), b = std::min(begin + chunk, last);
    float* const to = out.data() + (a - first);
    if (b - a == chunk) {
      HWY_DYNAMIC_DISPATCH(normal_chunk)(key, stream, begin / 4, deviation, to);
    } else {
      float whole[random_chunk];
      HWY_DYNAMIC_DISPATCH(normal_chunk)(key, stream, begin / 4, deviation, whole);
      std::copy(whole + (a - begin), whole + (b - begin), to);
    }
  });
}

}  // namespace sluice::kernels
#endif
