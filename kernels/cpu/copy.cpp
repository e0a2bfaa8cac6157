#include "kernels/cpu/copy.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy.cpp"
#include <hwy/foreach_target.h>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

constexpr std::uint64_t line_bytes = 64;

/// Whole lines, of which dst begins one. Returns how many bytes those are.
std::uint64_t copy_lines(std::uint8_t* dst, const std::uint8_t* src, std::uint64_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::uint64_t vector_bytes = hn::Lanes(d), step = std::max(line_bytes, 4 * vector_bytes);
  std::uint64_t at = 0;
  for (; at + step <= bytes; at += step)
    for (std::uint64_t i = 0; i < step; i += vector_bytes) hn::Stream(hn::LoadU(d, src + at + i), d, dst + at + i);
  hwy::FlushStream();
  return at;
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {
HWY_EXPORT(copy_lines);

void copy_past_caches(void* dst, const void* src, std::uint64_t bytes) {
#if HWY_IS_ASAN || HWY_IS_TSAN
  std::memcpy(dst, src, bytes);  // they do not see non-temporal stores
#else
  auto* to = static_cast<std::uint8_t*>(dst);
  const auto* from = static_cast<const std::uint8_t*>(src);
  const std::uint64_t head = std::min<std::uint64_t>(bytes, -reinterpret_cast<std::uintptr_t>(to) % 64);
  std::memcpy(to, from, head);
  const std::uint64_t end = head + HWY_DYNAMIC_DISPATCH(copy_lines)(to + head, from + head, bytes - head);
  std::memcpy(to + end, from + end, bytes - end);
#endif
}

}  // namespace sluice::kernels
#endif
