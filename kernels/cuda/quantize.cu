// A thread has packs of eight neighbours. Of blocks up to 256, each has some threads of a warp; of larger ones, a warp
// has all of it in registers, so that numbers are read once.
#include <bit>

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/quantize.h"
#include "sluice/status.h"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned threads = 256, warps = threads / warp_threads;
constexpr int n = 8;

/// Eight codes, a byte or half of one each.
template <int bits>
struct Codes {
  static constexpr int bytes = bits == 8 ? n : n / 2;
  Pack<std::uint8_t, bytes> pack;

  __device__ static std::int64_t at(std::int64_t i) { return bits == 8 ? i : i / 2; }
  __device__ static Part part(Part elements) {
    return {bits == 8 ? elements.valid : (elements.valid + 1) / 2, elements.whole};
  }
  __device__ static Codes load(const std::uint8_t* from, std::int64_t i, Part elements) {
    return {Pack<std::uint8_t, bytes>::load(from + at(i), part(elements))};
  }
  __device__ void store(std::uint8_t* to, std::int64_t i, Part elements) const {
    pack.store(to + at(i), part(elements));
  }

  /// The sign is extended from the top of a word.
  __device__ float operator[](int j) const {
    const std::uint32_t code = bits == 8 ? pack.bits(j) : pack.bits(j / 2) >> j % 2 * 4;
    return static_cast<float>(static_cast<std::int32_t>(code << (32 - bits)) >> (32 - bits));
  }
  /// Of an element that is zero so far.
  __device__ void set(int j, int code) {
    if constexpr (bits == 8)
      pack.set_bits(j, static_cast<std::uint32_t>(code));
    else
      pack.set_bits(j / 2, (static_cast<std::uint32_t>(code) & 15u) << j % 2 * 4);
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

/// Largest magnitude, as bits, over `lanes` neighbours of the warp, a power of two.
__device__ inline std::uint32_t largest_of(std::uint32_t mine, int lanes) {
  for (int with = lanes / 2; with > 0; with /= 2) {
    const std::uint32_t other = __shfl_xor_sync(all_lanes, mine, with);
    mine = other > mine ? other : mine;
  }
  return mine;
}

template <class T, int bits, int packs>
__global__ void __launch_bounds__(threads) quantize_kernel(Blocks<T> a) {
  const unsigned lane = threadIdx.x % warp_threads;
  const int lanes = packs > 1 ? static_cast<int>(warp_threads) : (1 << a.block_shift) / n;
  constexpr std::int64_t pass = std::int64_t{n} * warp_threads, turn = packs * pass;
  for (std::int64_t begin = (std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads) * turn; begin < a.numel;
       begin += std::int64_t{gridDim.x} * warps * turn) {
    Pack<T, n> x[packs];
    Part part[packs];
    std::uint32_t largest = 0;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const std::int64_t i = begin + p * pass + std::int64_t{lane} * n;
      part[p] = i < a.numel ? part_of<n>(i, a.numel, a.aligned) : Part{};
      x[p] = Pack<T, n>::load(a.x + i, part[p]);
    }
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const std::uint32_t magnitude = magnitude_bits(x[p][j]);
        largest = magnitude > largest ? magnitude : largest;
      }
    const QuantizationScale s = quantization_scale(largest_of(largest, lanes), bits);
    const std::int64_t first = begin + std::int64_t{lane} * n;
    if (lane % lanes == 0 && first < a.numel) a.scales[first >> a.block_shift] = s.scale;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      Codes<bits> codes;
#pragma unroll
      for (int j = 0; j < n; ++j) codes.set(j, __float2int_rn(__fmul_rn(x[p][j], s.per_scale)));  // of NaN: 0
      codes.store(a.codes, begin + p * pass + std::int64_t{lane} * n, part[p]);
    }
  }
}

/// x = code * scale, or x += that.
template <class T, int bits, bool add>
struct Dequantize {
  static constexpr int n = cuda::n;
  const std::uint8_t* codes;
  const float* scales;
  T* x;
  int block_shift;
  struct In {
    Codes<bits> codes;
    float scale;
    Pack<T, n> x;
  };
  __device__ In load(std::int64_t, std::int64_t i, Part part) const {
    In in{Codes<bits>::load(codes, i, part), scales[i >> block_shift], {}};
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

int block_shift(const Quantization& q) {
  SLUICE_CHECK(q.is_valid(), "(%d bits, blocks of %lld)", q.bits, static_cast<long long>(q.block));
  return std::countr_zero(static_cast<std::uint64_t>(q.block));
}

template <int bits>
bool codes_aligned(const std::uint8_t* codes) {
  return packs_aligned<Codes<bits>::bytes>(codes);
}

template <class T, int bits, int packs>
void quantize_packs(const Blocks<T>& a, Stream& stream) {
  const std::int64_t turns = divide_up(a.numel, std::int64_t{n} * warp_threads * packs);
  launch(stream, "quantize", quantize_kernel<T, bits, packs>, dim3(some_blocks(stream, divide_up(turns, warps))),
         dim3(threads), a);
}

template <int bits, class T>
void quantize_bits(const T* x, std::int64_t numel, const Quantization& q, std::uint8_t* codes, float* scales,
                   Stream& stream) {
  const Blocks<T> a{x, codes, scales, numel, block_shift(q), packs_aligned<n>(x) && codes_aligned<bits>(codes)};
  if (numel <= 0) return;
  if (q.block == 2048) return quantize_packs<T, bits, 8>(a, stream);
  if (q.block == 1024) return quantize_packs<T, bits, 4>(a, stream);
  if (q.block == 512) return quantize_packs<T, bits, 2>(a, stream);
  quantize_packs<T, bits, 1>(a, stream);
}

template <int bits, bool add, class T>
void dequantize_bits(const char* name, const std::uint8_t* codes, const float* scales, std::int64_t numel,
                     const Quantization& q, T* x, Stream& stream) {
  map(stream, name, Dequantize<T, bits, add>{codes, scales, x, block_shift(q)}, 1, numel,
      packs_aligned<n>(x) && codes_aligned<bits>(codes));
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
