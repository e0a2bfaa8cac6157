#include "kernels/cpu/stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

void negate(float* x, std::int64_t n) {
  for_vectors(n, [=](std::int64_t i, auto io) HWY_ATTR { io.store(hn::Neg(io.load(x + i)), x + i); });
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::kernels {

HWY_EXPORT(negate);

void stream_update(std::span<float> x) { HWY_DYNAMIC_DISPATCH(negate)(x.data(), std::ssize(x)); }

}  // namespace sluice::kernels
#endif
