// How the moments of an optimizer are stored: fp32, bf16 or 8 bits, and the random bits that round them.
//
// A slow average moves by less than one step of a short format, so that rounding to nearest would freeze it. Formats
// below fp32 round stochastically: up with the probability that makes the expected value exact, from bits that are a
// pure function of (key, index of the element in its tensor). So results do not depend on threads, cuts or targets.
//
// bf16: rounding_bits(key, index) gives 16 bits to each moment, the low half to exp_avg and the high half to
//     exp_avg_sq. They are added to the low half of the fp32 bits, which is then cut off. Magnitudes from 0x7f7f0000 on
//     are only cut, so that no finite value becomes infinite; NaN becomes 0x7fc0. Gradients that are kept in bf16 are
//     rounded in the same way, by the low half of the bits that a key of their own gives (round_gradient).
//
// int8: blocks of 256 elements counted from the tensor's start (the last one may be shorter), each with one fp32 scale
//     per moment. The code is mu-law's (ITU-T G.711: a linear piece per binade, an offset that makes it linear around
//     zero): bits 19 and up of the fp32 number y = 2 + |x| / scale, less those of 2, 16 codes to a binade.
//         exp_avg     sign (bit 7) and 7 bits, y < 496:   scale = max|x| / 493.999
//         exp_avg_sq  8 bits, y < 126976:                 scale = max x / 126973.5
//     Codes step by 3 to 6% of large values and by 12% at 1/247 (exp_avg) and 1/63487 (exp_avg_sq) of the block's
//     largest; below, by a constant 1/3952 and 1/1015792 of it. So the smallest denominator is 1/1008 of the largest,
//     and cannot blow up what rounding adds to a small exp_avg. Pieces are linear between codes, so that adding 19
//     random bits below the code and cutting off is exactly unbiased. Decoding is one fma, no table. Encoding, in fp32:
//         max = the block's largest magnitude, at least 2^-100 (0: scale 0 and codes 0; not finite: scale NaN, codes 0)
//         scale = max / 493.999, y = fma(|x|, 493.999 / max, 2), code = (bits(y) + random - bits(2)) >> 19
//     with 126973.5 for exp_avg_sq; random is the low 19 bits of rounding_bits for exp_avg and the high 19 bits for
//     exp_avg_sq. The code of exp_avg_sq is at least 1 in a block that has anything: denominators never collapse.
//     Decoding:
//         |x| = fma(y, scale, -2 scale) with bits(y) = bits(2) + (code << 19)
//     Zero bytes are zero moments.
#pragma once

#include <cstdint>

#include "sluice/random.h"

namespace sluice {

enum class MomentFormat : std::uint8_t { f32, bf16, int8 };

constexpr const char* moment_format_name(MomentFormat format) {
  switch (format) {
    case MomentFormat::f32: return "f32";
    case MomentFormat::bf16: return "bf16";
    case MomentFormat::int8: return "int8";
  }
  return "?";
}

/// Elements that share a scale. Ranges of int8 moments begin at multiples of it, and end there or with the tensor.
constexpr std::int64_t moment_block_numel = 256;

/// Of one moment of one element, scales aside.
constexpr std::uint64_t moment_bytes(MomentFormat format) {
  return format == MomentFormat::f32 ? 4 : format == MomentFormat::bf16 ? 2 : 1;
}

/// fp32 scales of one moment of a tensor.
constexpr std::uint64_t moment_scales(MomentFormat format, std::uint64_t numel) {
  return format == MomentFormat::int8 ? (numel + moment_block_numel - 1) / moment_block_numel : 0;
}

/// A bijection of 32 bits that mixes well (Wellons, "Prospecting for hash functions", 2018, lowbias32).
constexpr std::uint32_t mix_bits(std::uint32_t x) {
  x = (x ^ x >> 16) * 0x21f0aaadu;
  x = (x ^ x >> 15) * 0x735a2d97u;
  return x ^ x >> 15;
}

/// What rounding_bits makes of the element's place in its block, and of the block.
constexpr std::uint32_t rounding_lane(std::uint64_t key, std::uint32_t lane) {
  return mix_bits(lane + philox(key, 0, 1)[0]);
}
/// Steele, Lea and Flood's SplitMix64 ("Fast splittable pseudorandom number generators", 2014): the upper half.
constexpr std::uint32_t rounding_block(std::uint64_t key, std::uint64_t block) {
  std::uint64_t x = key + (block + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>((x ^ x >> 31) >> 32);
}

/// 32 random bits for element `index` of a tensor in a step, both of them in `key`. Any two elements' bits are
/// independent, which is all that the variance of what rounding adds up to asks for; those of two places in a block
/// differ by the same mask in all blocks of a step. A vector of elements costs one instruction: the lanes are made once
/// a step, the block's word once in 256 elements.
constexpr std::uint32_t rounding_bits(std::uint64_t key, std::uint64_t index) {
  return rounding_lane(key, static_cast<std::uint32_t>(index % moment_block_numel)) ^
         rounding_block(key, index / moment_block_numel);
}

}  // namespace sluice
