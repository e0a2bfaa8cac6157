#include "kernels/cpu/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize.cpp"
#include <hwy/foreach_target.h>

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
using Bytes = hn::Rebind<std::uint8_t, hn::ScalableTag<std::uint16_t>>;
using Pairs = hn::ScalableTag<std::uint16_t>;

/// Codes of a block near the core, a byte each; loops over whole vectors may run beyond the last.
struct NearCodes {
  HWY_ALIGN std::int8_t each[most_block + HWY_MAX_BYTES];
  HWY_ALIGN std::uint8_t packed[most_block / 2 + HWY_MAX_BYTES];
};

template <class T>
HWY_INLINE std::uint32_t largest_bits(const T* x, std::int64_t n) {
  auto largest = hn::Zero(I32());
  for_vectors(n, [&](std::int64_t i, auto io)
                     HWY_ATTR { largest = hn::Max(largest, hn::BitCast(I32(), hn::Abs(io.load(x + i)))); });
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), largest)));
}

template <class T>
HWY_INLINE void encode(const T* x, std::int64_t n, float per_scale, std::int8_t* codes) {
  const Vec per = hn::Set(F32(), per_scale);
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR {
    hn::StoreU(hn::DemoteTo(Codes(), hn::NearestInt(hn::Mul(io.load(x + i), per))), Codes(), codes + i);
  });
}

/// Two codes to a byte; as a pair of bytes, the first is the low one.
HWY_INLINE void pack(const std::int8_t* codes, std::int64_t bytes, std::uint8_t* packed) {
  const Pairs d;
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto pair = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(codes + 2 * i));
    const auto low = hn::And(pair, hn::Set(d, 0x000f)), high = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, 0x00f0));
    hn::StoreU(hn::TruncateTo(Bytes(), hn::Or(low, high)), Bytes(), packed + i);
  }
}

/// The reverse: a sign is extended by moving the code to the upper half of its byte as a number of 16 bits.
HWY_INLINE void unpack(const std::uint8_t* packed, std::int64_t bytes, std::int8_t* codes) {
  const Pairs d;
  const hn::RebindToSigned<Pairs> di;
  for (std::int64_t i = 0; i < bytes; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto byte = hn::BitCast(di, hn::PromoteTo(d, hn::LoadU(Bytes(), packed + i)));
    const auto low = hn::ShiftRight<12>(hn::ShiftLeft<12>(byte)), high = hn::ShiftRight<12>(hn::ShiftLeft<8>(byte));
    const auto pair = hn::Or(hn::And(low, hn::Set(di, 0xff)), hn::ShiftLeft<8>(high));
    hn::StoreU(hn::BitCast(d, pair), d, reinterpret_cast<std::uint16_t*>(codes + 2 * i));
  }
}

template <class T>
void quantize_blocks(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales) {
  NearCodes near;
  for (std::int64_t at = 0; at < numel; at += q.block) {
    const std::int64_t n = HWY_MIN(q.block, numel - at);
    const std::uint64_t bytes = quantized_code_bytes(n, q);
    const QuantizationScale s = quantization_scale(largest_bits(x + at, n), q.bits);
    *scales++ = s.scale;
    if (s.per_scale == 0) {
      std::memset(codes, 0, bytes);
    } else {
      encode(x + at, n, s.per_scale, near.each);
      near.each[n] = 0;
      if (q.bits == 4) pack(near.each, static_cast<std::int64_t>(bytes), near.packed);
      std::memcpy(codes, q.bits == 4 ? near.packed : reinterpret_cast<const std::uint8_t*>(near.each), bytes);
    }
    codes += bytes;
  }
}

/// use(i, access, values) for vector after vector of the range.
template <class Use>
HWY_INLINE void for_values(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                           const Use& use) {
  NearCodes near;
  for (std::int64_t at = 0; at < numel; at += q.block) {
    const std::int64_t n = HWY_MIN(q.block, numel - at);
    const std::uint64_t bytes = quantized_code_bytes(n, q);
    std::memcpy(q.bits == 4 ? near.packed : reinterpret_cast<std::uint8_t*>(near.each), codes, bytes);
    if (q.bits == 4) unpack(near.packed, static_cast<std::int64_t>(bytes), near.each);
    const Vec scale = hn::Set(F32(), *scales++);
    for_vectors(n, [&](std::int64_t i, auto io) HWY_ATTR {
      const auto code = hn::PromoteTo(I32(), hn::LoadU(Codes(), near.each + i));
      use(at + i, io, hn::Mul(hn::ConvertTo(F32(), code), scale));
    });
    codes += bytes;
  }
}

template <class T>
void dequantize_blocks(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                       T* x) {
  for_values(codes, scales, numel, q, [=](std::int64_t i, auto io, Vec v) HWY_ATTR { io.store(v, x + i); });
}

void dequantize_add_blocks(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                           float* sum) {
  for_values(codes, scales, numel, q,
             [=](std::int64_t i, auto io, Vec v) HWY_ATTR { io.store(hn::Add(io.load(sum + i), v), sum + i); });
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
