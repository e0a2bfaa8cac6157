// Formats of sluice/moments.h, a vector at a time. Compiled once per SIMD target.
#if defined(SLUICE_KERNELS_CPU_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_KERNELS_CPU_MOMENTS_INL_H_
#undef SLUICE_KERNELS_CPU_MOMENTS_INL_H_
#else
#define SLUICE_KERNELS_CPU_MOMENTS_INL_H_
#endif

#include "kernels/cpu/exact_fma-inl.h"
#include "kernels/cpu/master-inl.h"
#include "sluice/moments.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// rounding_bits for vectors of one block: `bits` of them, from bit `first` on.
template <int first = 0, int bits = 32>
class RoundingBits {
 public:
  explicit RoundingBits(std::uint64_t key) : key_(key) {
    const U32 d;
    const auto start = hn::Set(d, philox(key, 0, 1)[0]);
    for (std::int64_t i = 0; i < moment_block_numel; i += lanes()) {
      auto x = hn::Add(start, hn::Iota(d, static_cast<std::uint32_t>(i)));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x21f0aaadu));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x735a2d97u));
      x = hn::Xor(x, hn::ShiftRight<15>(x));
      hn::StoreU(hn::And(hn::ShiftRight<first>(x), hn::Set(d, mask)), d, lane_ + i);
    }
  }
  HWY_INLINE void seek(std::uint64_t block) { block_ = hn::Set(U32(), rounding_block(key_, block) >> first & mask); }
  /// Of elements lane to lane + lanes(); those beyond the block's end are anything.
  HWY_INLINE Bits at(std::int64_t lane) const { return hn::Xor(hn::LoadU(U32(), lane_ + lane), block_); }

 private:
  static constexpr std::uint32_t mask = 0xffffffffu >> (32 - bits);
  std::uint64_t key_;
  Bits block_ = hn::Zero(U32());
  HWY_ALIGN std::uint32_t lane_[moment_block_numel + HWY_MAX_BYTES / sizeof(std::uint32_t)] = {};
};

HWY_INLINE void store_high_half(Bits x, bf16* to) {
  hn::StoreU(high_halves(x), U16(), reinterpret_cast<std::uint16_t*>(to));
}

/// Both moments, each with 16 of the random bits.
HWY_INLINE void store_rounded(Vec m, Vec v, Bits random, bf16* exp_avg, bf16* exp_avg_sq) {
  const U32 d;
  const Bits m_bits = hn::BitCast(d, m), v_bits = hn::BitCast(d, v);
  auto low = hn::And(random, hn::Set(d, 0xffffu)), high = hn::ShiftRight<16>(random);
  const auto largest = hn::Max(hn::BitCast(I32(), hn::Abs(m)), hn::BitCast(I32(), hn::Abs(v)));
  if (HWY_LIKELY(hn::AllFalse(I32(), hn::Gt(largest, hn::Set(I32(), 0x7f7effff))))) {
    store_high_half(hn::Add(m_bits, low), exp_avg);
    store_high_half(hn::Add(v_bits, high), exp_avg_sq);
    return;
  }
  low = hn::IfThenZeroElse(hn::RebindMask(d, magnitude_from(m_bits, 0x7f7f0000u)), low);
  high = hn::IfThenZeroElse(hn::RebindMask(d, magnitude_from(v_bits, 0x7f7f0000u)), high);
  store_high_half(hn::Add(with_quiet_nan(m_bits), low), exp_avg);
  store_high_half(hn::Add(with_quiet_nan(v_bits), high), exp_avg_sq);
}

using Codes = hn::Rebind<std::uint8_t, F32>;
using SignedCodes = hn::Rebind<std::int8_t, F32>;
constexpr int code_shift = 19;

/// y * scale - 2 scale, with the sign of y.
HWY_INLINE Vec decode_lanes(const std::int8_t* p, Vec scale, Vec minus_two_scales) {
  const U32 d;
  const auto code = hn::BitCast(d, hn::PromoteTo(I32(), hn::LoadU(SignedCodes(), p)));  // the sign also in bit 31
  const auto y = hn::OrAnd(hn::Set(d, 0x40000000u), hn::ShiftLeft<code_shift>(code), hn::Set(d, 0x83f80000u));
  const auto offset = hn::Xor(hn::And(y, hn::Set(d, 0x80000000u)), hn::BitCast(d, minus_two_scales));
  return exact_fma(hn::BitCast(F32(), y), scale, hn::BitCast(F32(), offset));
}

HWY_INLINE Vec decode_lanes(const std::uint8_t* p, Vec scale, Vec minus_two_scales) {
  const U32 d;
  const auto code = hn::PromoteTo(d, hn::LoadU(Codes(), p));
  const auto y = hn::Or(hn::ShiftLeft<code_shift>(code), hn::Set(d, 0x40000000u));
  return exact_fma(hn::BitCast(F32(), y), scale, minus_two_scales);
}

/// Vectors that are encoded together: one byte of each 32 bits.
constexpr int code_group = 4;

HWY_INLINE Bits select_bits(std::uint32_t mask, Bits yes, Bits no) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Bits{_mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(mask)), yes.raw, no.raw, 0xca)};
#else
  return hn::Or(hn::And(yes, hn::Set(U32(), mask)), hn::AndNot(hn::Set(U32(), mask), no));
#endif
}

#if HWY_TARGET == HWY_SCALAR
template <bool with_sign>
HWY_INLINE void store_codes(const Bits (&y)[code_group], std::uint8_t* p) {
  for (int j = 0; j < code_group; ++j) {
    const std::uint32_t bits = hn::GetLane(y[j]);
    const std::uint32_t code = bits >> code_shift & 0xffu;
    p[j] = static_cast<std::uint8_t>(with_sign ? code | (bits >> 24 & 0x80u) : HWY_MAX(code, 1u));
  }
}
#else
/// Bits 19 to 25 and the sign of four vectors one after the other, or bits 19 to 26, at least 1. Bits 26 (with a sign)
/// or 27 to 29 of y are 0.
template <bool with_sign>
HWY_INLINE void store_codes(const Bits (&y)[code_group], std::uint8_t* p) {
  const U32 d;
  const hn::Repartition<std::uint8_t, U32> bytes;
  // The upper halves of y[0] and y[1], and of y[2] and y[3]: a code is in bits 3 to 10 of each.
  Bits even = select_bits(0xffff0000u, y[1], hn::ShiftRight<16>(y[0]));
  Bits odd = select_bits(0xffff0000u, y[3], hn::ShiftRight<16>(y[2]));
  if (with_sign) {
    even = select_bits(0x04000400u, hn::ShiftRight<5>(even), even);
    odd = select_bits(0x04000400u, hn::ShiftRight<5>(odd), odd);
  }
  const Bits codes = select_bits(0x00ff00ffu, hn::ShiftRight<3>(even), hn::ShiftLeft<5>(odd));
  // Of y[0], y[2], y[1], y[3] in turns: first sorted within 16 bytes, then in pieces of four.
  alignas(16) static constexpr std::uint8_t sorted[16] = {0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15};
  const auto pieces = hn::TableLookupBytes(hn::BitCast(bytes, codes), hn::LoadDup128(bytes, sorted));
  HWY_ALIGN std::int32_t places[HWY_MAX_BYTES / sizeof(std::int32_t)];
  const auto blocks = static_cast<int>(lanes() / 4);
  for (int i = 0; i < 4 * blocks; ++i) places[i] = i % blocks * 4 + i / blocks;
  const auto in_order = hn::TableLookupLanes(hn::BitCast(d, pieces), hn::SetTableIndices(d, places));
  const auto all = hn::BitCast(bytes, in_order);
  hn::StoreU(with_sign ? all : hn::Max(all, hn::Set(bytes, 1)), bytes, p);
}
#endif

/// Of elements `lane` and following of a block. `per_scale`: 1 / scale. Random bits are added below the code of
/// y = x / scale + 2, both with x's sign.
HWY_INLINE void encode_group(const float* x, Vec per_scale, const RoundingBits<0, code_shift>& random,
                             std::int64_t lane, std::int8_t* p) {
  Bits y[code_group];
  for (int j = 0; j < code_group; ++j) {
    const Vec each = load_lanes(x + j * lanes());
    const Vec shifted = exact_fma(each, per_scale, hn::CopySignToAbs(hn::Set(F32(), 2.0f), each));
    y[j] = hn::Add(hn::BitCast(U32(), shifted), random.at(lane + j * lanes()));
  }
  store_codes<true>(y, reinterpret_cast<std::uint8_t*>(p));
}

HWY_INLINE void encode_group(const float* x, Vec per_scale, const RoundingBits<32 - code_shift, code_shift>& random,
                             std::int64_t lane, std::uint8_t* p) {
  Bits y[code_group];
  for (int j = 0; j < code_group; ++j) {
    const Vec shifted = exact_fma(load_lanes(x + j * lanes()), per_scale, hn::Set(F32(), 2.0f));
    y[j] = hn::Add(hn::BitCast(U32(), shifted), random.at(lane + j * lanes()));
  }
  store_codes<false>(y, p);
}

/// Largest |x| / scale: what codes of 127 and 255 stand for, less a little, so that the largest y is not rounded to a
/// code more.
constexpr float most_exp_avg = 493.999f, most_exp_avg_sq = 126973.5f;

/// Scale of a block whose largest magnitude has the given bits, and its reciprocal.
struct BlockScale {
  float scale = 0, per_scale = 0;
  bool usual = false;  ///< neither zero nor not finite, where all codes are 0
  HWY_INLINE BlockScale(std::uint32_t largest_bits, float most) {
    if (largest_bits == 0) return;
    usual = largest_bits < 0x7f800000u;
    if (!usual) scale = std::bit_cast<float>(0x7fc00000u);
    if (!usual) return;
    const float largest = HWY_MAX(std::bit_cast<float>(largest_bits), 0x1p-100f);
    scale = largest / most;
    per_scale = most / largest;
  }
};

HWY_INLINE std::uint32_t largest_lane(Bits x) { return hn::GetLane(hn::MaxOfLanes(U32(), x)); }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
