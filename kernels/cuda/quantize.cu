// A thread has packs of 16 bytes of numbers, and with a code for each of them 2 to 8 bytes: what a warp reads or writes
// at once is one piece of memory. A block stays in registers until the threads that have it know its largest.
#include <algorithm>
#include <bit>

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/quantize.h"
#include "sluice/status.h"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256, warps = threads / warp_threads;

/// The codes of a pack of n elements, a byte or half of one each.
template <int bits, int n>
struct Codes {
  static constexpr int bytes = n * bits / 8;
  Pack<std::uint8_t, bytes> pack;

  __device__ static std::int64_t at(std::int64_t i) { return i * bits / 8; }
  __device__ static Part part(Part elements) { return {(elements.valid * bits + 7) / 8, elements.whole}; }
  __device__ static Codes load(const std::uint8_t* from, std::int64_t i, Part elements) {
    return {Pack<std::uint8_t, bytes>::load(from + at(i), part(elements))};
  }
  __device__ void store(std::uint8_t* to, std::int64_t i, Part elements) const {
    pack.store(to + at(i), part(elements));
  }
  __device__ float operator[](int j) const {
    const std::uint32_t code = bits == 8 ? pack.bits(j) : pack.bits(j / 2) >> j % 2 * 4;
    return static_cast<float>(static_cast<std::int32_t>(code << (32 - bits)) >> (32 - bits));  // with its sign
  }
  /// Of an element that is zero so far.
  __device__ void set(int j, int code) {
    const auto word = static_cast<std::uint32_t>(code);
    if constexpr (bits == 8)
      pack.set_bits(j, word);
    else
      pack.set_bits(j / 2, (word & 15u) << j % 2 * 4);
  }
};

template <class T>
struct Blocks {
  const T* x;
  std::uint8_t* codes;
  float* scales;
  std::int64_t numel;
  int block_shift;  ///< log2 of a block's elements
  bool aligned;
};

/// Elements that a warp has in one pack per thread.
template <class T>
constexpr std::int64_t pass_numel = std::int64_t{pack_numel<T>} * warp_threads;

/// Largest over `lanes` neighbours of the warp, a power of two.
__device__ inline std::uint32_t largest_of(std::uint32_t mine, int lanes) {
  for (int with = lanes / 2; with > 0; with /= 2) {
    const std::uint32_t other = __shfl_xor_sync(all_lanes, mine, with);
    mine = other > mine ? other : mine;
  }
  return mine;
}

/// A warp has `groups` times `packs` packs in each thread. The packs of a group are one block that the whole warp
/// shares; or there is one, and some neighbouring threads share a block.
template <class T, int bits, int groups, int packs>
__global__ void __launch_bounds__(threads) quantize_kernel(Blocks<T> a) {
  constexpr int n = pack_numel<T>, all = groups * packs;
  constexpr std::int64_t pass = pass_numel<T>;
  const int lane = static_cast<int>(threadIdx.x % warp_threads);
  const int lanes = packs > 1 ? static_cast<int>(warp_threads) : (1 << a.block_shift) / n;
  const std::int64_t warp = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads;
  for (std::int64_t begin = warp * all * pass; begin < a.numel; begin += std::int64_t{gridDim.x} * warps * all * pass) {
    const std::int64_t first = begin + std::int64_t{lane} * n;
    Pack<T, n> x[all];
    Part part[all];
#pragma unroll
    for (int p = 0; p < all; ++p) {
      const std::int64_t i = first + p * pass;
      part[p] = i < a.numel ? part_of<n>(i, a.numel, a.aligned) : Part{};
      x[p] = Pack<T, n>::load(a.x + i, part[p]);
    }
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      std::uint32_t largest = 0;
#pragma unroll
      for (int p = g * packs; p < (g + 1) * packs; ++p)
#pragma unroll
        for (int j = 0; j < n; ++j) {
          const std::uint32_t magnitude = magnitude_bits(x[p][j]);
          largest = magnitude > largest ? magnitude : largest;
        }
      const QuantizationScale s = quantization_scale(largest_of(largest, lanes), bits);
      const std::int64_t i = first + std::int64_t{g} * packs * pass;
      if (lane % lanes == 0 && i < a.numel) a.scales[i >> a.block_shift] = s.scale;
#pragma unroll
      for (int p = g * packs; p < (g + 1) * packs; ++p) {
        Codes<bits, n> codes;
#pragma unroll
        for (int j = 0; j < n; ++j) codes.set(j, __float2int_rn(__fmul_rn(x[p][j], s.per_scale)));  // of NaN: 0
        codes.store(a.codes, first + p * pass, part[p]);
      }
    }
  }
}

/// x = code * scale, or x += that.
template <class T, int bits, bool add>
struct Dequantize {
  static constexpr int n = pack_numel<T>;
  const std::uint8_t* codes;
  const float* scales;
  T* x;
  int block_shift;
  struct In {
    Codes<bits, n> codes;
    float scale;
    Pack<T, n> x;
  };
  __device__ In load(std::int64_t, std::int64_t i, Part part) const {
    In in{Codes<bits, n>::load(codes, i, part), scales[i >> block_shift], {}};
    if constexpr (add) in.x = Pack<T, n>::load(x + i, part);
    return in;
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const In& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      v[j] = __fmul_rn(in.codes[j], in.scale);
      if constexpr (add) v[j] = __fadd_rn(in.x[j], v[j]);
    }
    Pack<T, n>::of(v).store(x + i, part);
  }
};

template <int bits, class T>
bool all_aligned(const T* x, const std::uint8_t* codes) {
  constexpr int n = pack_numel<T>;
  return packs_aligned<n>(x) && packs_aligned<Codes<bits, n>::bytes>(codes);
}

int block_shift(const Quantization& q) {
  SLUICE_CHECK(q.is_valid(), "(%d bits, blocks of %lld)", q.bits, static_cast<long long>(q.block));
  return std::countr_zero(static_cast<std::uint64_t>(q.block));
}

/// Of blocks of `block`, or fewer where that is one pack of a warp: it has two then.
template <int bits, int block, class T>
void quantize_blocks(const Blocks<T>& a, Stream& stream) {
  constexpr int packs = std::max(1, block / static_cast<int>(pass_numel<T>)), groups = packs == 1 ? 2 : 1;
  const std::int64_t turns = divide_up(a.numel, groups * packs * pass_numel<T>);
  launch(stream, "quantize", quantize_kernel<T, bits, groups, packs>,
         dim3(some_blocks(stream, divide_up(turns, warps))), dim3(threads), a);
}

template <int bits, class T>
void quantize_bits(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
                   Stream& stream) {
  const Blocks<T> a{x, codes, scales, numel, block_shift(q), all_aligned<bits>(x, codes)};
  if (numel <= 0) return;
  switch (q.block) {
    case 2048: return quantize_blocks<bits, 2048>(a, stream);
    case 1024: return quantize_blocks<bits, 1024>(a, stream);
    case 512: return quantize_blocks<bits, 512>(a, stream);
    case 256: return quantize_blocks<bits, 256>(a, stream);
    default: return quantize_blocks<bits, 128>(a, stream);
  }
}

template <int bits, bool add, class T>
void dequantize_bits(const char* name, const std::uint8_t* codes, const float* scales, std::int64_t numel,
                     const Quantization& q, T* x, Stream& stream) {
  map(stream, name, Dequantize<T, bits, add>{codes, scales, x, block_shift(q)}, 1, numel, all_aligned<bits>(x, codes));
}

}  // namespace

template <class T>
void quantize(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
              Stream& stream) {
  (q.bits == 8 ? quantize_bits<8, T> : quantize_bits<4, T>)(x, numel, q, codes, scales, stream);
}

template <class T>
void dequantize(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x,
                Stream& stream) {
  (q.bits == 8 ? dequantize_bits<8, false, T> : dequantize_bits<4, false, T>)("dequantize", codes, scales, numel, q, x,
                                                                              stream);
}

void dequantize_add(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                    float* sum, Stream& stream) {
  (q.bits == 8 ? dequantize_bits<8, true, float> : dequantize_bits<4, true, float>)("dequantize_add", codes, scales,
                                                                                    numel, q, sum, stream);
}

template void quantize(const float*, std::int64_t, const Quantization&, std::uint8_t*, float*, Stream&);
template void quantize(const bf16*, std::int64_t, const Quantization&, std::uint8_t*, float*, Stream&);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, float*, Stream&);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, bf16*, Stream&);

}  // namespace sluice::kernels::cuda
