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

/// rounding_bits for vectors of one block.
class RoundingBits {
 public:
  explicit RoundingBits(std::uint64_t key) : key_(key) {
    const U32 d;
    const auto start = hn::Set(d, philox(key, 0, 1)[0]);
    for (std::int64_t i = 0; i < moment_block_numel; i += lanes()) {
      auto x = hn::Add(start, hn::Iota(d, static_cast<std::uint32_t>(i)));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(d, 0x21f0aaadu));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(d, 0x735a2d97u));
      hn::StoreU(hn::Xor(x, hn::ShiftRight<15>(x)), d, lane_ + i);
    }
  }
  HWY_INLINE void seek(std::uint64_t block) { block_ = rounding_block(key_, block); }
  /// Of elements lane to lane + lanes(); those beyond the block's end are anything.
  HWY_INLINE Bits at(std::int64_t lane) const {
    const U32 d;
    return hn::Mul(hn::Xor(hn::LoadU(d, lane_ + lane), hn::Set(d, block_.mask)), hn::Set(d, block_.factor));
  }

 private:
  std::uint64_t key_;
  RoundingBlock block_{};
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

/// Code of y = |x| / scale + 2 under 19 random bits, in the low byte.
HWY_INLINE Bits encode_magnitude(Vec y, Bits random) {
  return hn::ShiftRight<code_shift>(hn::Add(hn::BitCast(U32(), y), random));
}

/// `per_scale`: 1 / scale. The codes of 2 and up begin at 0x800, whose low byte is 0.
HWY_INLINE void encode_lanes(Vec x, Vec per_scale, Bits random, std::int8_t* p) {
  const U32 d;
  const auto y = exact_fma(hn::Abs(x), per_scale, hn::Set(F32(), 2.0f));
  const auto code = encode_magnitude(y, hn::And(random, hn::Set(d, (1u << code_shift) - 1)));
  const auto with_sign =
      hn::OrAnd(code, hn::ShiftRight<24>(hn::BitCast(d, x)), hn::Set(d, 0x80u));  // bit 7 of 0x800 + code is free
  hn::StoreU(hn::TruncateTo(Codes(), with_sign), Codes(), reinterpret_cast<std::uint8_t*>(p));
}

HWY_INLINE void encode_lanes(Vec x, Vec per_scale, Bits random, std::uint8_t* p) {
  const auto y = exact_fma(x, per_scale, hn::Set(F32(), 2.0f));
  const auto code = encode_magnitude(y, hn::ShiftRight<32 - code_shift>(random));
  hn::StoreU(hn::TruncateTo(Codes(), hn::Max(code, hn::Set(U32(), 0x801u))), Codes(), p);
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

HWY_INLINE std::uint32_t largest_lane(Bits x) {
  std::uint32_t each[HWY_MAX_BYTES / sizeof(std::uint32_t)];
  hn::StoreU(x, U32(), each);
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < lanes(); ++i) most = HWY_MAX(most, each[i]);
  return most;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
