#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/round_gradient.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/moments-inl.h"
#include "sluice/adamw.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

/// The upper half, with 16 random bits added to the lower one.
HWY_INLINE void store_rounded(Vec x, Bits random, bf16* to) {
  const U32 d;
  const Bits bits = hn::BitCast(d, x);
  random = hn::IfThenZeroElse(hn::RebindMask(d, magnitude_from(bits, 0x7f7f0000u)), random);
  store_high_half(hn::Add(with_quiet_nan(bits), random), to);
}

void round_elements(std::uint64_t key, std::uint64_t first_index, const float* x, std::int64_t n, bf16* rounded) {
  RoundingBits<0, 16> random(key);
  for (std::int64_t i = 0; i < n;) {
    const std::uint64_t index = first_index + static_cast<std::uint64_t>(i);
    const auto lane = static_cast<std::int64_t>(index % moment_block_numel);
    const std::int64_t end = HWY_MIN(n, i + moment_block_numel - lane), to_lane = lane - i;
    random.seek(index / moment_block_numel);
    for (; i + lanes() <= end; i += lanes()) store_rounded(load_lanes(x + i), random.at(i + to_lane), rounded + i);
    if (i == end) continue;
    const Tail<float> from(x + i, end - i);
    Tail<bf16> to(rounded + i, end - i);
    store_rounded(load_lanes(from.data), random.at(i + to_lane), to.data);
    to.put_back(rounded + i, end - i);
    i = end;
  }
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace kernels {
HWY_EXPORT(round_elements);
}

void round_gradient(std::uint64_t key, std::uint64_t first_index, const float* x, std::int64_t numel, bf16* rounded) {
  using namespace kernels;  // where HWY_EXPORT has put its table
  HWY_DYNAMIC_DISPATCH(round_elements)(key, first_index, x, numel, rounded);
}

}  // namespace sluice
#endif
