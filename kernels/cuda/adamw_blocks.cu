// AdamW with int8 moments: a warp has a block of 256 elements, eight to a thread, and all of it in registers: decoded,
// updated, and encoded as soon as the warp knows the largest.
#include "kernels/cuda/adamw_blocks.cuh"
#include "kernels/cuda/adamw_math.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256, warps = threads / warp_threads;
constexpr int n = 8, code_shift = 19;
static_assert(std::int64_t{n} * warp_threads == moment_block_numel);

/// Largest |x| / scale of the codes, less a little, so that the largest y is not rounded to a code more.
constexpr float most_exp_avg = 493.999f, most_exp_avg_sq = 126973.5f;

template <class P, class G>
struct Blocks {
  P* parameter;
  std::int16_t* remainder;
  std::int8_t* exp_avg;
  std::uint8_t* exp_avg_sq;
  float *exp_avg_scales, *exp_avg_sq_scales;
  const G* gradient;
  std::int64_t numel;
  std::uint64_t first_block;
  std::uint32_t first_lane;  ///< what rounding_lane(key, 0) mixes
  unsigned long long* diverged;
  bool aligned;
};

/// y * scale - 2 scale, where y = 2 + code / 2^4 of a binade, both with the code's sign.
__device__ float decode_signed(std::uint32_t code, float scale, float minus_two_scales) {
  const std::uint32_t sign = (code & 0x80u) << 24;
  const std::uint32_t y = 0x40000000u | sign | (code & 0x7fu) << code_shift;
  const std::uint32_t offset = std::bit_cast<std::uint32_t>(minus_two_scales) ^ sign;
  return __fmaf_rn(std::bit_cast<float>(y), scale, std::bit_cast<float>(offset));
}
__device__ float decode_unsigned(std::uint32_t code, float scale, float minus_two_scales) {
  return __fmaf_rn(std::bit_cast<float>(0x40000000u | code << code_shift), scale, minus_two_scales);
}

/// Scale of a block whose largest magnitude has the given bits, and its reciprocal.
struct BlockScale {
  float scale = 0, per_scale = 0;
  bool usual = false;  ///< neither zero nor not finite, where all codes are 0
  __device__ BlockScale(std::uint32_t largest_bits, float most) {
    if (largest_bits == 0) return;
    usual = largest_bits < 0x7f800000u;
    if (!usual) {
      scale = std::bit_cast<float>(0x7fc00000u);
      return;
    }
    const float found = std::bit_cast<float>(largest_bits), largest = found > 0x1p-100f ? found : 0x1p-100f;
    scale = __fdiv_rn(largest, most);
    per_scale = __fdiv_rn(most, largest);
  }
};

/// `random`: 19 bits, added below the code of y = 2 + |x| / scale.
__device__ std::uint32_t encode_signed(float x, float per_scale, std::uint32_t random) {
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & 0x80000000u;
  const float y = __fmaf_rn(x, per_scale, std::bit_cast<float>(0x40000000u | sign));
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(y) + random;
  return (bits >> code_shift & 0x7fu) | (bits >> 24 & 0x80u);
}
__device__ std::uint32_t encode_unsigned(float x, float per_scale, std::uint32_t random) {
  const float y = __fmaf_rn(x, per_scale, 2.0f);
  const std::uint32_t code = (std::bit_cast<std::uint32_t>(y) + random) >> code_shift & 0xffu;
  return code > 1 ? code : 1;
}

template <class P, class G>
__global__ void __launch_bounds__(threads, 3) adamw_blocks_kernel(AdamwConstants c, Blocks<P, G> a) {
  const unsigned lane = threadIdx.x % warp_threads;
  std::uint32_t random_lane[n], diverged = 0;
#pragma unroll
  for (int j = 0; j < n; ++j) random_lane[j] = mix_bits(lane * n + j + a.first_lane);
  const std::int64_t blocks = divide_up(a.numel, moment_block_numel);
  for (std::int64_t b = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads; b < blocks;
       b += std::int64_t{gridDim.x} * warps) {
    const std::int64_t i = b * moment_block_numel + std::int64_t{lane} * n;
    const Part part = i < a.numel ? part_of<n>(i, a.numel, a.aligned) : Part{};
    Masters<P, n> masters;
    masters.load(a.parameter, a.remainder, i, part);
    const Pack<std::int8_t, n> codes_m = Pack<std::int8_t, n>::load(a.exp_avg + i, part);
    const Pack<std::uint8_t, n> codes_v = Pack<std::uint8_t, n>::load(a.exp_avg_sq + i, part);
    const Pack<G, n> gradient = Pack<G, n>::load(a.gradient + i, part);
    const float scale_m = __fmul_rn(a.exp_avg_scales[b], c.beta1);
    const float scale_v = __fmul_rn(a.exp_avg_sq_scales[b], c.beta2);
    const float offset_m = __fmul_rn(-2.0f, scale_m), offset_v = __fmul_rn(-2.0f, scale_v);

    float w[n], m[n], v[n];
    std::uint32_t largest_m = 0, largest_v = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float g = gradient[j], h = __fmul_rn(c.gradient_to_root_v, g);
      m[j] = __fmaf_rn(c.gradient_to_m, g, decode_signed(codes_m.bits(j), scale_m, offset_m));
      v[j] = __fmaf_rn(h, h, decode_unsigned(codes_v.bits(j), scale_v, offset_v));
      w[j] = updated_master(c, masters[j], m[j], v[j]);
      if (j < part.valid) {
        diverged += is_diverged(w[j]) ? 1 : 0;
        largest_m = largest_m > magnitude_bits(m[j]) ? largest_m : magnitude_bits(m[j]);
        largest_v = largest_v > magnitude_bits(v[j]) ? largest_v : magnitude_bits(v[j]);
      }
    }
    Masters<P, n>::store(w, a.parameter, a.remainder, i, part);

    const BlockScale to_m(__reduce_max_sync(all_lanes, largest_m), most_exp_avg);
    const BlockScale to_v(__reduce_max_sync(all_lanes, largest_v), most_exp_avg_sq);
    const std::uint32_t block = rounding_block(c.rounding_key, a.first_block + static_cast<std::uint64_t>(b));
    Pack<std::int8_t, n> new_m;
    Pack<std::uint8_t, n> new_v;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const std::uint32_t random = random_lane[j] ^ block;
      new_m.set_bits(j, to_m.usual ? encode_signed(m[j], to_m.per_scale, random & 0x7ffffu) : 0);
      new_v.set_bits(j, to_v.usual ? encode_unsigned(v[j], to_v.per_scale, random >> (32 - code_shift)) : 0);
    }
    new_m.store(a.exp_avg + i, part);
    new_v.store(a.exp_avg_sq + i, part);
    if (lane == 0) {  // all lanes have read the old ones: they have met since
      a.exp_avg_scales[b] = to_m.scale;
      a.exp_avg_sq_scales[b] = to_v.scale;
    }
  }
  add_count(diverged, a.diverged);
}

}  // namespace

template <class P, class G>
void adamw_blocks(const AdamwConstants& c, const AdamwRange& r, std::uint64_t* diverged, Stream& stream) {
  Blocks<P, G> a{static_cast<P*>(r.parameter),
                 r.remainder,
                 static_cast<std::int8_t*>(r.exp_avg),
                 static_cast<std::uint8_t*>(r.exp_avg_sq),
                 r.exp_avg_scales,
                 r.exp_avg_sq_scales,
                 static_cast<const G*>(r.gradient),
                 r.numel,
                 r.first_index / moment_block_numel,
                 philox(c.rounding_key, 0, 1)[0],
                 reinterpret_cast<unsigned long long*>(diverged),
                 false};
  a.aligned = packs_aligned<n>(a.parameter) && packs_aligned<n>(a.remainder) && packs_aligned<n>(a.exp_avg) &&
              packs_aligned<n>(a.exp_avg_sq) && packs_aligned<n>(a.gradient);
  launch(stream, "adamw (int8)", adamw_blocks_kernel<P, G>,
         dim3(some_blocks(stream, divide_up(divide_up(r.numel, moment_block_numel), warps))), dim3(threads), c, a);
}

template void adamw_blocks<float, float>(const AdamwConstants&, const AdamwRange&, std::uint64_t*, Stream&);
template void adamw_blocks<float, bf16>(const AdamwConstants&, const AdamwRange&, std::uint64_t*, Stream&);
template void adamw_blocks<bf16, float>(const AdamwConstants&, const AdamwRange&, std::uint64_t*, Stream&);
template void adamw_blocks<bf16, bf16>(const AdamwConstants&, const AdamwRange&, std::uint64_t*, Stream&);

}  // namespace sluice::kernels::cuda
