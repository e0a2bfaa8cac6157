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

template <int bits_, CodeFormat format_>
struct Kind {
  static constexpr int bits = bits_;
  static constexpr CodeFormat format = format_;
};
using Int8 = Kind<8, CodeFormat::integer>;
using Int4 = Kind<4, CodeFormat::integer>;
using E4m3 = Kind<8, CodeFormat::e4m3>;

/// The codes of a pack of n elements, a byte or half of one each.
template <class K, int n>
struct Codes {
  static constexpr int bits = K::bits, bytes = n * bits / 8;
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
    if constexpr (K::format == CodeFormat::e4m3) return e4m3_value(static_cast<std::uint8_t>(code));
    return static_cast<float>(static_cast<std::int32_t>(code << (32 - bits)) >> (32 - bits));  // with its sign
  }
  /// Of an element that is zero so far. Of NaN, and of all with `per_scale` 0, the code is 0.
  __device__ void set(int j, float x, float per_scale) {
    const float scaled = __fmul_rn(x, per_scale);
    std::uint32_t word = 0;
    if constexpr (K::format == CodeFormat::e4m3)
      word = per_scale == 0 ? 0 : e4m3_code(scaled);
    else
      word = static_cast<std::uint32_t>(__float2int_rn(scaled));
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
  float most;       ///< the largest code
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
template <class T, class K, int groups, int packs>
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
      const QuantizationScale s = quantization_scale(largest_of(largest, lanes), a.most);
      const std::int64_t i = first + std::int64_t{g} * packs * pass;
      if (lane % lanes == 0 && i < a.numel) a.scales[i >> a.block_shift] = s.scale;
#pragma unroll
      for (int p = g * packs; p < (g + 1) * packs; ++p) {
        Codes<K, n> codes;
#pragma unroll
        for (int j = 0; j < n; ++j) codes.set(j, x[p][j], s.per_scale);
        codes.store(a.codes, first + p * pass, part[p]);
      }
    }
  }
}

/// x = code * scale, or x += that.
template <class T, class K, bool add>
struct Dequantize {
  static constexpr int n = pack_numel<T>;
  const std::uint8_t* codes;
  const float* scales;
  T* x;
  int block_shift;
  struct In {
    Codes<K, n> codes;
    float scale;
    Pack<T, n> x;
  };
  __device__ In load(std::int64_t, std::int64_t i, Part part) const {
    In in{Codes<K, n>::load(codes, i, part), scales[i >> block_shift], {}};
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

template <class K, class T>
bool all_aligned(const T* x, const std::uint8_t* codes) {
  constexpr int n = pack_numel<T>;
  return packs_aligned<n>(x) && packs_aligned<Codes<K, n>::bytes>(codes);
}

int block_shift(const Quantization& q) {
  SLUICE_CHECK(q.is_valid(), "(%d bits, blocks of %lld)", q.bits, static_cast<long long>(q.block));
  return std::countr_zero(static_cast<std::uint64_t>(q.block));
}

/// Of blocks of `block`, or fewer where that is one pack of a warp: it has two then.
template <class K, int block, class T>
void quantize_blocks(const Blocks<T>& a, Stream& stream) {
  constexpr int packs = std::max(1, block / static_cast<int>(pass_numel<T>)), groups = packs == 1 ? 2 : 1;
  const std::int64_t turns = divide_up(a.numel, groups * packs * pass_numel<T>);
  launch(stream, "quantize", quantize_kernel<T, K, groups, packs>, dim3(some_blocks(stream, divide_up(turns, warps))),
         dim3(threads), a);
}

template <class K, class T>
void quantize_kind(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
                   Stream& stream) {
  const Blocks<T> a{x, codes, scales, numel, block_shift(q), q.most(), all_aligned<K>(x, codes)};
  if (numel <= 0) return;
  switch (q.block) {
    case 2048: return quantize_blocks<K, 2048>(a, stream);
    case 1024: return quantize_blocks<K, 1024>(a, stream);
    case 512: return quantize_blocks<K, 512>(a, stream);
    case 256: return quantize_blocks<K, 256>(a, stream);
    default: return quantize_blocks<K, 128>(a, stream);
  }
}

template <class K, bool add, class T>
void dequantize_kind(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x,
                     Stream& stream) {
  map(stream, add ? "dequantize_add" : "dequantize", Dequantize<T, K, add>{codes, scales, x, block_shift(q)}, 1, numel,
      all_aligned<K>(x, codes));
}

/// use(Kind) of what it asks for.
template <class Use>
void with_kind(const Quantization& q, const Use& use) {
  if (q.format == CodeFormat::e4m3) return use(E4m3());
  q.bits == 8 ? use(Int8()) : use(Int4());
}

}  // namespace

template <class T>
void quantize(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
              Stream& stream) {
  with_kind(q, [&]<class K>(K) { quantize_kind<K>(x, numel, q, codes, scales, stream); });
}

template <class T>
void dequantize(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q, T* x,
                Stream& stream) {
  with_kind(q, [&]<class K>(K) { dequantize_kind<K, false>(codes, scales, numel, q, x, stream); });
}

void dequantize_add(const std::uint8_t* codes, const float* scales, std::int64_t numel, const Quantization& q,
                    float* sum, Stream& stream) {
  with_kind(q, [&]<class K>(K) { dequantize_kind<K, true>(codes, scales, numel, q, sum, stream); });
}

template void quantize(const float*, std::int64_t, const Quantization&, std::uint8_t*, float*, Stream&);
template void quantize(const bf16*, std::int64_t, const Quantization&, std::uint8_t*, float*, Stream&);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, float*, Stream&);
template void dequantize(const std::uint8_t*, const float*, std::int64_t, const Quantization&, bf16*, Stream&);

}  // namespace sluice::kernels::cuda
