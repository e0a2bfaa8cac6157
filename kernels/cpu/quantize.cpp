#include "kernels/cpu/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include <hwy/foreach_target.h>

#include "hwy/cache_control.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "sluice/status.h"

namespace sluice::kernels {
#ifndef SLUICE_KERNELS_CPU_QUANTIZE_TABLES
#define SLUICE_KERNELS_CPU_QUANTIZE_TABLES
/// The loops of one SIMD target, over ranges that begin at a block; each works in the calling thread.
template <class T>
struct QuantizeLoops {
  void (*quantize)(const T* x, std::int64_t numel, const Quantization&, std::uint8_t* codes, float* scales);
  void (*dequantize)(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization&, T* x);
};
constexpr std::int64_t most_block = 2048;
static_assert(parallel_grain % most_block == 0);
#endif
}  // namespace sluice::kernels

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

using Codes = hn::Rebind<std::int8_t, F32>;
using Bytes = hn::Rebind<std::uint8_t, F32>;
/// Of bytes, as many together as Codes: what was just stored is loaded again in the same pieces.
using Pairs = hn::CappedTag<std::uint16_t, HWY_MAX_BYTES / 8>;
using Halves = hn::Rebind<std::uint8_t, Pairs>;

/// Whole vectors of codes may reach this far beyond a block.
constexpr std::uint64_t slack_bytes = HWY_MAX_BYTES;

/// Codes of a block near the core: a byte each, or as they are stored.
struct NearCodes {
  HWY_ALIGN std::uint8_t each[most_block + slack_bytes], stored[most_block + slack_bytes];
};

/// Asks for the line a page ahead. Prefetches do not fault: they may reach beyond the end.
template <class T>
HWY_INLINE void prefetch(const T* p) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): arithmetic on pointers may not reach beyond the end.
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(p) + 4096));
}

template <class T>
HWY_INLINE std::uint32_t largest_bits(const T* x, std::int64_t n) {
  auto largest = hn::Zero(I32());
  for_vectors(n, [&](std::int64_t i, auto io) HWY_ATTR {
    prefetch(x + i);
    largest = hn::Max(largest, hn::BitCast(I32(), hn::Abs(io.load(x + i))));
  });
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), largest)));
}

/// In two's complement in the lowest bits: 1.5 * 2^23 leaves a sum no fraction.
HWY_INLINE hn::Vec<U32> code_lanes(Vec x, Vec per_scale) {
  return hn::BitCast(U32(), hn::Add(hn::Mul(x, per_scale), hn::Set(F32(), 0x1.8p23f)));
}

/// e4m3_code, in the lowest bits.
HWY_INLINE hn::Vec<U32> e4m3_lanes(Vec x) {
  const I32 d;
  const auto bits = hn::BitCast(d, x), magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const auto fine = hn::Sub(hn::BitCast(d, hn::Add(hn::Abs(x), hn::Set(F32(), 0x1p14f))), hn::Set(d, 0x46800000));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d, 1));
  const auto rounded = hn::ShiftRight<20>(hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0x7ffff))));
  const auto large = hn::Min(hn::Sub(rounded, hn::Set(d, 120 << 3)), hn::Set(d, 0x7e));
  const auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x3c800000)), fine, large);
  return hn::BitCast(U32(), hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(d, 0x80))));
}

/// e4m3_value.
HWY_INLINE Vec e4m3_values(hn::Vec<I32> code) {
  const I32 d;
  const auto magnitude = hn::And(code, hn::Set(d, 0x7f)), bits = hn::ShiftLeft<20>(magnitude);
  const Vec fine = hn::Sub(hn::BitCast(F32(), hn::Add(bits, hn::Set(d, 121 << 23))), hn::Set(F32(), 0x1p-6f));
  const Vec large = hn::BitCast(F32(), hn::Add(bits, hn::Set(d, 120 << 23)));
  const Vec value = hn::IfThenElse(hn::RebindMask(F32(), hn::Lt(magnitude, hn::Set(d, 8))), fine, large);
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(d, 0x80)));
  return hn::BitCast(F32(), hn::Or(hn::BitCast(d, value), sign));
}

/// `lanes(x, per)` has the codes in its lowest bits.
template <class T, class Lanes>
HWY_INLINE void encode(const T* x, std::int64_t n, float per_scale, std::uint8_t* codes, const Lanes& lanes) {
  const Vec per = hn::Set(F32(), per_scale);
  for_vectors(n, [=](std::int64_t i, auto io)
                     HWY_ATTR { hn::StoreU(hn::TruncateTo(Bytes(), lanes(io.load(x + i), per)), Bytes(), codes + i); });
}
template <class T>
HWY_INLINE void encode(const T* x, std::int64_t n, float per_scale, std::uint8_t* codes, CodeFormat format) {
  if (format == CodeFormat::e4m3)
    encode(x, n, per_scale, codes, [](Vec v, Vec per) HWY_ATTR { return e4m3_lanes(hn::Mul(v, per)); });
  else
    encode(x, n, per_scale, codes, [](Vec v, Vec per) HWY_ATTR { return code_lanes(v, per); });
}

/// Two codes to a byte; of a pair of bytes, the first is the low one.
HWY_INLINE void pack(const std::uint8_t* codes, std::uint64_t bytes, std::uint8_t* packed) {
  const Pairs d;
  for (std::uint64_t i = 0; i < bytes; i += hn::Lanes(d)) {
    const auto pair = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(codes + 2 * i));
    const auto low = hn::And(pair, hn::Set(d, 0x000f)), high = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, 0x00f0));
    hn::StoreU(hn::TruncateTo(Halves(), hn::Or(low, high)), Halves(), packed + i);
  }
}

/// The reverse. In each byte the sign 0x08 becomes 0xf0, which is 0x100 - 0x10.
HWY_INLINE void unpack(const std::uint8_t* packed, std::uint64_t bytes, std::uint8_t* codes) {
  const hn::ScalableTag<std::uint16_t> d;
  const hn::Rebind<std::uint8_t, decltype(d)> halves;
  for (std::uint64_t i = 0; i < bytes; i += hn::Lanes(d)) {
    const auto byte = hn::PromoteTo(d, hn::LoadU(halves, packed + i));
    const auto pair = hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(d, 0x0f0f));
    const auto sign = hn::And(pair, hn::Set(d, 0x0808));
    const auto extended = hn::Or(pair, hn::Sub(hn::ShiftLeft<5>(sign), hn::ShiftLeft<1>(sign)));
    hn::StoreU(extended, d, reinterpret_cast<std::uint16_t*>(codes + 2 * i));
  }
}

template <class T>
void quantize_blocks(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales) {
  NearCodes near;
  const std::uint8_t* const end = codes + quantized_code_bytes(numel, q);
  for (std::int64_t at = 0; at < numel; at += q.block) {
    const std::int64_t n = HWY_MIN(q.block, numel - at);
    const std::uint64_t bytes = quantized_code_bytes(n, q);
    const QuantizationScale s = quantization_scale(largest_bits(x + at, n), q.most());
    *scales++ = s.scale;
    if (s.per_scale == 0) {
      std::memset(codes, 0, bytes);
    } else {
      // What is written beyond a block becomes the next one's, except at the end.
      const bool last = static_cast<std::uint64_t>(end - codes) < bytes + slack_bytes;
      std::uint8_t* const to = last ? near.stored : codes;
      encode(x + at, n, s.per_scale, q.bits == 8 ? to : near.each, q.format);
      near.each[n] = 0;
      if (q.bits == 4) pack(near.each, bytes, to);
      if (last) std::memcpy(codes, to, bytes);
    }
    codes += bytes;
  }
}

/// use(i, access, values) for vector after vector of the range.
template <class Use>
HWY_INLINE void for_values(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                           const Use& use) {
  NearCodes near;
  const std::uint8_t* const end = codes + quantized_code_bytes(numel, q);
  for (std::int64_t at = 0; at < numel; at += q.block) {
    const std::int64_t n = HWY_MIN(q.block, numel - at);
    const std::uint64_t bytes = quantized_code_bytes(n, q);
    const bool last = static_cast<std::uint64_t>(end - codes) < bytes + slack_bytes;
    if (last) std::memcpy(near.stored, codes, bytes);
    const std::uint8_t* each = last ? near.stored : codes;
    if (q.bits == 4) {
      unpack(each, bytes, near.each);
      each = near.each;
    }
    const Vec scale = hn::Set(F32(), *scales++);
    const auto decode = [&](const auto& values) HWY_ATTR {
      for_vectors(n, [&](std::int64_t i, auto io) HWY_ATTR {
        const auto code = hn::PromoteTo(I32(), hn::BitCast(Codes(), hn::LoadU(Bytes(), each + i)));
        use(at + i, io, hn::Mul(values(code), scale));
      });
    };
    if (q.format == CodeFormat::e4m3)
      decode([](hn::Vec<I32> code) HWY_ATTR { return e4m3_values(code); });
    else
      decode([](hn::Vec<I32> code) HWY_ATTR { return hn::ConvertTo(F32(), code); });
    codes += bytes;
  }
}

template <class T>
void dequantize_blocks(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                       T* x) {
  for_values(codes, scales, numel, q, [=](std::int64_t i, auto io, Vec v) HWY_ATTR {
    prefetch(x + i);
    io.store(v, x + i);
  });
}

void dequantize_add_blocks(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                           float* sum) {
  for_values(codes, scales, numel, q, [=](std::int64_t i, auto io, Vec v) HWY_ATTR {
    prefetch(sum + i);
    io.store(hn::Add(io.load(sum + i), v), sum + i);
  });
}

template <class T>
constexpr QuantizeLoops<T> loops{&quantize_blocks<T>, &dequantize_blocks<T>};

const QuantizeLoops<float>* quantize_f32() { return &loops<float>; }
const QuantizeLoops<bf16>* quantize_bf16() { return &loops<bf16>; }

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
namespace {

HWY_EXPORT(quantize_f32);
HWY_EXPORT(quantize_bf16);
HWY_EXPORT(dequantize_add_blocks);

template <class T>
const QuantizeLoops<T>& simd();
template <>
const QuantizeLoops<float>& simd() {
  return *HWY_DYNAMIC_DISPATCH(quantize_f32)();
}
template <>
const QuantizeLoops<bf16>& simd() {
  return *HWY_DYNAMIC_DISPATCH(quantize_bf16)();
}

/// f(first element, elements, its codes, its scale) for pieces of whole blocks.
template <class Codes, class Scales, class F>
void for_blocks(std::int64_t numel, const Quantization& q, Codes* codes, Scales* scales, const F& f) {
  SLUICE_CHECK(q.is_valid(), "(%d bits, blocks of %lld)", q.bits, static_cast<long long>(q.block));
  for_pieces(numel, parallel_grain, [&](std::int64_t a, std::int64_t b) {
    f(a, b - a, codes + quantized_code_bytes(a, q), scales + quantized_blocks(a, q));
  });
}

}  // namespace

template <class T>
void quantize(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales) {
  for_blocks(
      numel, q, codes, scales,
      [&, loop = simd<T>().quantize](std::int64_t at, std::int64_t n, auto* c, auto* s) { loop(x + at, n, q, c, s); });
}

template <class T>
void dequantize(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x) {
  for_blocks(numel, q, codes, scales,
             [&, loop = simd<T>().dequantize](std::int64_t at, std::int64_t n, auto* c, auto* s) {
               loop(c, s, n, q, x + at);
             });
}

void dequantize_add(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                    float* sum) {
  for_blocks(numel, q, codes, scales, [&](std::int64_t at, std::int64_t n, auto* c, auto* s) {
    HWY_DYNAMIC_DISPATCH(dequantize_add_blocks)(c, s, n, q, sum + at);
  });
}

template void quantize(const float*, std::int64_t, const Quantization&, std::uint8_t*, float*);
template void quantize(const bf16*, std::int64_t, const Quantization&, std::uint8_t*, float*);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, float*);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, bf16*);

}  // namespace sluice::kernels
#endif
