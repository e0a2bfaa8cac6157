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
  explicit RoundingBits(std::uint64_t key) : key_(key), block_(0) {
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
    const auto x = hn::Mul(hn::Xor(hn::LoadU(d, lane_ + lane), hn::Set(d, block_)), hn::Set(d, 0x9e3779b1u));
    return hn::Xor(x, hn::ShiftRight<16>(x));
  }

 private:
  std::uint64_t key_;
  std::uint32_t block_;
  HWY_ALIGN std::uint32_t lane_[moment_block_numel + HWY_MAX_BYTES / sizeof(std::uint32_t)] = {};
};

/// `random` has 16 bits.
HWY_INLINE void store_rounded(Vec value, Bits random, bf16* to) {
  const U32 d;
  const auto bits = hn::BitCast(d, value);
  const auto magnitude = hn::BitCast(I32(), hn::And(bits, hn::Set(d, 0x7fffffffu)));
  const auto rounds = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(I32(), 0x7f7f0000)));
  const auto sum = hn::Add(bits, hn::IfThenElseZero(rounds, random));
  const auto nan = hn::RebindMask(d, hn::IsNaN(value));
  const auto high = hn::IfThenElse(nan, hn::Set(d, 0x7fc0u), hn::ShiftRight<16>(sum));
  hn::StoreU(hn::TruncateTo(U16(), high), U16(), reinterpret_cast<std::uint16_t*>(to));
}

using Codes = hn::Rebind<std::uint8_t, F32>;
using SignedCodes = hn::Rebind<std::int8_t, F32>;
constexpr int code_shift = 19;

/// y * scale - 2 scale of the code's magnitude.
HWY_INLINE Vec decode_magnitude(Bits code, Vec scale, Vec minus_two_scales) {
  const U32 d;
  const auto y = hn::Or(hn::ShiftLeft<code_shift>(code), hn::Set(d, 0x40000000u));
  return exact_fma(hn::BitCast(F32(), y), scale, minus_two_scales);
}

HWY_INLINE Vec decode_lanes(const std::int8_t* p, Vec scale, Vec minus_two_scales) {
  const auto code = hn::PromoteTo(I32(), hn::LoadU(SignedCodes(), p));
  const auto magnitude = decode_magnitude(hn::BitCast(U32(), hn::Abs(code)), scale, minus_two_scales);
  return hn::CopySignToAbs(magnitude, hn::BitCast(F32(), code));
}

HWY_INLINE Vec decode_lanes(const std::uint8_t* p, Vec scale, Vec minus_two_scales) {
  return decode_magnitude(hn::PromoteTo(U32(), hn::LoadU(Codes(), p)), scale, minus_two_scales);
}

/// Code of y = |x| / scale + 2 under 19 random bits, in the low byte.
HWY_INLINE Bits encode_magnitude(Vec y, Bits random) {
  return hn::ShiftRight<code_shift>(hn::Add(hn::BitCast(U32(), y), random));
}

/// `per_scale`: 1 / scale. The codes of 2 and up begin at 0x800, whose low byte is 0.
HWY_INLINE void encode_lanes(Vec x, Vec per_scale, Bits random, std::int8_t* p) {
  const U32 d;
  const auto y = hn::Min(exact_fma(hn::Abs(x), per_scale, hn::Set(F32(), 2.0f)), hn::Set(F32(), 496.0f));
  const auto code = hn::BitCast(I32(), encode_magnitude(y, hn::And(random, hn::Set(d, 0x7ffffu))));
  const auto negative = hn::Lt(hn::BitCast(I32(), x), hn::Zero(I32()));
  const auto with_sign = hn::IfThenElse(negative, hn::Neg(code), code);
  hn::StoreU(hn::TruncateTo(Codes(), hn::BitCast(d, with_sign)), Codes(), reinterpret_cast<std::uint8_t*>(p));
}

HWY_INLINE void encode_lanes(Vec x, Vec per_scale, Bits random, std::uint8_t* p) {
  const U32 d;
  const auto y = hn::Min(exact_fma(x, per_scale, hn::Set(F32(), 2.0f)), hn::Set(F32(), 126976.0f));
  const auto code = encode_magnitude(y, hn::ShiftRight<32 - code_shift>(random));
  const auto above_zero = hn::RebindMask(d, hn::Gt(x, hn::Zero(F32())));
  const auto kept = hn::IfThenElse(above_zero, hn::Max(code, hn::Set(d, 0x801u)), code);
  hn::StoreU(hn::TruncateTo(Codes(), kept), Codes(), p);
}

/// Scale of a block whose largest magnitude has the given bits, and its reciprocal; `most` is the largest code's value.
struct BlockScale {
  float scale = 0, per_scale = 0;
  bool finite = true;
  HWY_INLINE BlockScale(std::uint32_t largest_bits, float most) {
    if (largest_bits == 0) return;
    finite = largest_bits < 0x7f800000u;
    scale = finite ? 0.0f : std::bit_cast<float>(0x7fc00000u);
    if (!finite) return;
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
