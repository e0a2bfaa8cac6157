#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/master.cpp"
#include <hwy/foreach_target.h>

#include "kernels/cpu/master-inl.h"
#include "sluice/adamw.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::kernels::HWY_NAMESPACE {

void split(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    split_lanes(hn::BitCast(U32(), load_lanes(master + i)), parameter + i, remainder + i);
  if (i < n) {
    const Tail<float> w(master + i, n - i);
    Tail<bf16> p(parameter + i, n - i);
    Tail<std::int16_t> r(remainder + i, n - i);
    split_lanes(hn::BitCast(U32(), load_lanes(w.data)), p.data, r.data);
    p.put_back(parameter + i, n - i);
    r.put_back(remainder + i, n - i);
  }
}

void join(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + lanes() <= n; i += lanes())
    store_lanes(hn::BitCast(F32(), join_lanes(parameter + i, remainder + i)), master + i);
  if (i < n) {
    const Tail<bf16> p(parameter + i, n - i);
    const Tail<std::int16_t> r(remainder + i, n - i);
    Tail<float> w(master + i, n - i);
    store_lanes(hn::BitCast(F32(), join_lanes(p.data, r.data)), w.data);
    w.put_back(master + i, n - i);
  }
}

}  // namespace sluice::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace kernels {
HWY_EXPORT(split);
HWY_EXPORT(join);
}  // namespace kernels

void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel) {
  using namespace kernels;  // where HWY_EXPORT has put its tables
  HWY_DYNAMIC_DISPATCH(split)(master, parameter, remainder, numel);
}

void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel) {
  using namespace kernels;
  HWY_DYNAMIC_DISPATCH(join)(parameter, remainder, master, numel);
}

}  // namespace sluice
#endif
