// AdamW with moments that stand for themselves: fp32, or bf16 rounded stochastically; and the choice of a kernel.
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/adamw_blocks.cuh"
#include "kernels/cuda/adamw_math.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256;

template <class P, class M, class G>
struct Elements {
  P* parameter;
  std::int16_t* remainder;
  M *exp_avg, *exp_avg_sq;
  const G* gradient;
  std::int64_t numel;
  std::uint64_t first_index;
  std::uint32_t first_lane;  ///< what rounding_lane(key, 0) mixes
  unsigned long long* diverged;
  bool aligned;
};

/// rounding_bits for one element after the other: the word of a block is made again where the next one begins.
class Random {
 public:
  __device__ Random(std::uint64_t key, std::uint32_t first_lane, std::uint64_t index)
      : key_(key), first_lane_(first_lane), index_(index), word_(rounding_block(key, index / moment_block_numel)) {}
  __device__ std::uint32_t at(int j) {
    const std::uint64_t index = index_ + static_cast<std::uint64_t>(j);
    const auto lane = static_cast<std::uint32_t>(index % moment_block_numel);
    if (j > 0 && lane == 0) word_ = rounding_block(key_, index / moment_block_numel);
    return mix_bits(lane + first_lane_) ^ word_;
  }

 private:
  std::uint64_t key_;
  std::uint32_t first_lane_;
  std::uint64_t index_;
  std::uint32_t word_;
};

/// With 16 random bits. Magnitudes from 0x7f7f0000 on are only cut.
__device__ std::uint32_t rounded_moment(float v, std::uint32_t random) {
  const std::uint32_t bits = with_quiet_nan(v);
  return (magnitude_bits(v) < 0x7f7f0000u ? bits + random : bits) >> 16;
}

template <class P, class M, class G>
__global__ void __launch_bounds__(threads, 4) adamw_elements_kernel(AdamwConstants c, Elements<P, M, G> a) {
  constexpr int n = 4;
  std::uint32_t diverged = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * threads * n;
  for (std::int64_t i = (std::int64_t{blockIdx.x} * threads + threadIdx.x) * n; i < a.numel; i += step) {
    const Part part = part_of<n>(i, a.numel, a.aligned);
    Masters<P, n> masters;
    masters.load(a.parameter, a.remainder, i, part);
    const Pack<M, n> exp_avg = Pack<M, n>::load(a.exp_avg + i, part);
    const Pack<M, n> exp_avg_sq = Pack<M, n>::load(a.exp_avg_sq + i, part);
    const Pack<G, n> gradient = Pack<G, n>::load(a.gradient + i, part);
    float w[n], m[n], v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float g = __fmul_rn(gradient[j], c.gradient_scale);
      m[j] = __fmaf_rn(c.one_minus_beta1, __fsub_rn(g, exp_avg[j]), exp_avg[j]);
      v[j] = __fmaf_rn(__fmul_rn(c.one_minus_beta2, g), g, __fmul_rn(c.beta2, exp_avg_sq[j]));
      w[j] = updated_master(c, masters[j], m[j], v[j]);
      diverged += j < part.valid && is_diverged(w[j]) ? 1 : 0;
    }
    Masters<P, n>::store(w, a.parameter, a.remainder, i, part);
    if constexpr (std::same_as<M, float>) {
      Pack<M, n>::of(m).store(a.exp_avg + i, part);
      Pack<M, n>::of(v).store(a.exp_avg_sq + i, part);
    } else {
      Random random(c.rounding_key, a.first_lane, a.first_index + static_cast<std::uint64_t>(i));
      Pack<M, n> to_m, to_v;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const std::uint32_t bits = random.at(j);
        to_m.set_bits(j, rounded_moment(m[j], bits & 0xffffu));
        to_v.set_bits(j, rounded_moment(v[j], bits >> 16));
      }
      to_m.store(a.exp_avg + i, part);
      to_v.store(a.exp_avg_sq + i, part);
    }
  }
  add_count(diverged, a.diverged);
}

template <class P, class M, class G>
void update_elements(const AdamwConstants& c, const AdamwRange& r, std::uint64_t* diverged, Stream& stream) {
  constexpr int n = 4;
  Elements<P, M, G> a{static_cast<P*>(r.parameter),
                      r.remainder,
                      static_cast<M*>(r.exp_avg),
                      static_cast<M*>(r.exp_avg_sq),
                      static_cast<const G*>(r.gradient),
                      r.numel,
                      r.first_index,
                      philox(c.rounding_key, 0, 1)[0],
                      reinterpret_cast<unsigned long long*>(diverged),
                      false};
  a.aligned = packs_aligned<n>(a.parameter) && packs_aligned<n>(a.remainder) && packs_aligned<n>(a.exp_avg) &&
              packs_aligned<n>(a.exp_avg_sq) && packs_aligned<n>(a.gradient);
  launch(stream, "adamw", adamw_elements_kernel<P, M, G>,
         dim3(some_blocks(stream, divide_up(r.numel, std::int64_t{threads} * n))), dim3(threads), c, a);
}

template <class P, class G>
void update(const AdamwConstants& c, const AdamwRange& r, std::uint64_t* diverged, Stream& stream) {
  switch (r.moments) {
    case MomentFormat::f32: return update_elements<P, float, G>(c, r, diverged, stream);
    case MomentFormat::bf16: return update_elements<P, bf16, G>(c, r, diverged, stream);
    case MomentFormat::int8: return adamw_blocks<P, G>(c, r, diverged, stream);
  }
}

template <class P>
void update(const AdamwConstants& c, const AdamwRange& r, std::uint64_t* diverged, Stream& stream) {
  SLUICE_CHECK(r.gradient_dtype == Dtype::f32 || r.gradient_dtype == Dtype::bf16, "(%s)", dtype_name(r.gradient_dtype));
  r.gradient_dtype == Dtype::f32 ? update<P, float>(c, r, diverged, stream) : update<P, bf16>(c, r, diverged, stream);
}

}  // namespace

void adamw(const AdamwStep& s, const AdamwRange& range, std::uint64_t* diverged, Stream& stream) {
  SLUICE_CHECK(range.dtype == Dtype::f32 || range.dtype == Dtype::bf16, "(%s)", dtype_name(range.dtype));
  SLUICE_CHECK(range.moments != MomentFormat::int8 || range.first_index % moment_block_numel == 0, "(%llu)",
               static_cast<unsigned long long>(range.first_index));
  if (range.numel <= 0) return;
  const AdamwConstants c = adamw_constants(s);
  range.dtype == Dtype::f32 ? update<float>(c, range, diverged, stream) : update<bf16>(c, range, diverged, stream);
}

}  // namespace sluice::kernels::cuda
