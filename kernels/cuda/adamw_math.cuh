// One element of AdamW as sluice/adamw.h and sluice/moments.h say it. Every operation is named: the sequence is the
// contract.
#pragma once

#include "kernels/adamw_constants.h"
#include "kernels/cuda/pack.cuh"

namespace sluice::kernels::cuda {

/// w from the new moments.
__device__ inline float updated_master(const AdamwConstants& c, float master, float m, float v) {
  const float direction = __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), c.root_correction2, c.eps));
  return __fmaf_rn(c.minus_rate, direction, __fmul_rn(master, c.keep));
}

/// NaN, infinite or infinite once it is rounded to bf16.
__device__ inline bool is_diverged(float master) { return magnitude_bits(master) > 0x7f7f7fffu; }
__device__ inline std::uint32_t with_quiet_nan(float v) {
  return magnitude_bits(v) > 0x7f800000u ? 0x7fc00000u : std::bit_cast<std::uint32_t>(v);
}

/// A parameter's n neighbours in registers: fp32 that is its own master, or bf16 with remainder.
template <class P, int n>
struct Masters;

template <int n>
struct Masters<float, n> {
  Pack<float, n> parameter;
  __device__ void load(const float* p, const std::int16_t*, std::int64_t i, Part part) {
    parameter = Pack<float, n>::load(p + i, part);
  }
  __device__ float operator[](int j) const { return parameter[j]; }
  __device__ static void store(const float (&w)[n], float* p, std::int16_t*, std::int64_t i, Part part) {
    Pack<float, n>::of(w).store(p + i, part);
  }
};

template <int n>
struct Masters<bf16, n> {
  Pack<bf16, n> parameter;
  Pack<std::int16_t, n> remainder;
  __device__ void load(const bf16* p, const std::int16_t* r, std::int64_t i, Part part) {
    parameter = Pack<bf16, n>::load(p + i, part);
    remainder = Pack<std::int16_t, n>::load(r + i, part);
  }
  __device__ float operator[](int j) const {
    const auto low = static_cast<std::int16_t>(remainder.bits(j));
    return std::bit_cast<float>((parameter.bits(j) << 16) + static_cast<std::uint32_t>(std::int32_t{low}));
  }
  /// Half of a unit of the parameter is added to the magnitude, which carries into the upper half where the lower one
  /// rounds up; the lower half read as signed is then what is missing.
  __device__ static void store(const float (&w)[n], bf16* p, std::int16_t* r, std::int64_t i, Part part) {
    Pack<bf16, n> high;
    Pack<std::int16_t, n> low;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const std::uint32_t master = with_quiet_nan(w[j]);
      high.set_bits(j, (master + 0x8000u) >> 16);
      low.set_bits(j, master);
    }
    high.store(p + i, part);
    low.store(r + i, part);
  }
};

/// Adds up over the warp what each lane has counted; whole warps call it.
__device__ inline void add_count(std::uint32_t mine, unsigned long long* to) {
  const std::uint32_t all = __reduce_add_sync(all_lanes, mine);
  if (all != 0 && threadIdx.x % warp_threads == 0) atomicAdd(to, all);
}

}  // namespace sluice::kernels::cuda
