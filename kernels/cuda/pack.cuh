// A few neighbouring elements of an array in registers: one access of up to 16 bytes (two above that) where addresses
// allow it, one per element elsewhere and at ends. Both ways give each thread the same elements, so that alignment
// changes no bit of a result.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "sluice/dtype.h"

namespace sluice::kernels::cuda {

/// Of a pack: how many of its elements there are, and whether one access may take all of them.
struct Part {
  int valid = 0;
  bool whole = false;
};

/// Elements from `at` on of `end`, in packs of n; `aligned` is a promise that all packs of the array are.
template <int n>
__device__ Part part_of(std::int64_t at, std::int64_t end, bool aligned) {
  const bool full = end - at >= n;
  return {full ? n : static_cast<int>(end - at), full && aligned};
}

__device__ inline std::uint32_t element_bits(float v) { return std::bit_cast<std::uint32_t>(v); }
__device__ inline std::uint32_t element_bits(bf16 v) { return v.bits; }
__device__ inline std::uint32_t element_bits(std::int16_t v) { return static_cast<std::uint16_t>(v); }
__device__ inline std::uint32_t element_bits(std::int8_t v) { return static_cast<std::uint8_t>(v); }
__device__ inline std::uint32_t element_bits(std::uint8_t v) { return v; }

/// They order magnitudes, infinity and NaN last.
__device__ inline std::uint32_t magnitude_bits(float v) { return std::bit_cast<std::uint32_t>(v) & 0x7fffffffu; }

template <class T>
__device__ T element_of(std::uint32_t bits) {
  if constexpr (std::same_as<T, float>)
    return std::bit_cast<float>(bits);
  else if constexpr (std::same_as<T, bf16>)
    return bf16{static_cast<std::uint16_t>(bits)};
  else
    return static_cast<T>(bits);
}

/// Two floats to bf16, nearest even, the first in the low half. NaN becomes a quiet NaN: the instruction's is 0x7fff.
__device__ inline std::uint32_t narrow_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
#endif
}

/// One store of 8 or 16 bytes. In PTX: the compiler takes those of some kernels apart, and does not join them again.
__device__ inline void store_whole(uint2* to, uint2 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
#else
  *to = v;
#endif
}
__device__ inline void store_whole(uint4* to, uint4 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *to = v;
#endif
}

/// n elements of T, of 2 to 32 bytes together. Elements that are not valid read as zero bits and are not written.
template <class T, int n>
class Pack {
 public:
  static constexpr int bytes = n * static_cast<int>(sizeof(T)), words = (bytes + 3) / 4;
  static_assert(bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16 || bytes == 32);
  /// What addresses must be a multiple of for one access (two of 16 bytes, for 32).
  static constexpr std::size_t alignment = bytes == 32 ? 16 : bytes;

  __device__ static Pack load(const T* from, Part part) {
    Pack p;
    if (part.whole) {
      if constexpr (bytes == 2) {
        p.word_[0] = *reinterpret_cast<const std::uint16_t*>(from);
      } else if constexpr (words == 1) {
        p.word_[0] = *reinterpret_cast<const std::uint32_t*>(from);
      } else if constexpr (words == 2) {
        const uint2 v = *reinterpret_cast<const uint2*>(from);
        p.word_[0] = v.x, p.word_[1] = v.y;
      } else {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
          const uint4 v = reinterpret_cast<const uint4*>(from)[i / 4];
          p.word_[i] = v.x, p.word_[i + 1] = v.y, p.word_[i + 2] = v.z, p.word_[i + 3] = v.w;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j)
        if (j < part.valid) p.set_bits(j, element_bits(from[j]));
    }
    return p;
  }

  __device__ void store(T* to, Part part) const {
    if (part.whole) {
      if constexpr (bytes == 2) {
        *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(word_[0]);
      } else if constexpr (words == 1) {
        *reinterpret_cast<std::uint32_t*>(to) = word_[0];
      } else if constexpr (words == 2) {
        store_whole(reinterpret_cast<uint2*>(to), uint2{word_[0], word_[1]});
      } else {
#pragma unroll
        for (int i = 0; i < words; i += 4)
          store_whole(reinterpret_cast<uint4*>(to) + i / 4, uint4{word_[i], word_[i + 1], word_[i + 2], word_[i + 3]});
      }
    } else {
#pragma unroll
      for (int j = 0; j < n; ++j)
        if (j < part.valid) to[j] = element_of<T>(bits(j));
    }
  }

  /// Of an element, zero-extended.
  __device__ std::uint32_t bits(int j) const { return word_[j * size / 4] >> j * size % 4 * 8 & mask; }
  /// Of an element that is zero so far.
  __device__ void set_bits(int j, std::uint32_t bits) { word_[j * size / 4] |= (bits & mask) << j * size % 4 * 8; }

  /// Of float and bf16.
  __device__ float operator[](int j) const {
    if constexpr (std::same_as<T, float>)
      return std::bit_cast<float>(word_[j]);
    else
      return std::bit_cast<float>(j % 2 == 0 ? word_[j / 2] << 16 : word_[j / 2] & 0xffff0000u);
  }
  /// Rounds to T.
  __device__ static Pack of(const float (&v)[n]) {
    Pack p;
#pragma unroll
    for (int i = 0; i < words; ++i) {
      if constexpr (std::same_as<T, float>)
        p.word_[i] = std::bit_cast<std::uint32_t>(v[i]);
      else
        p.word_[i] = narrow_pair(v[2 * i], v[2 * i + 1]);
    }
    return p;
  }

 private:
  static constexpr int size = static_cast<int>(sizeof(T));
  static constexpr std::uint32_t mask = 0xffffffffu >> (32 - 8 * size);
  std::uint32_t word_[words] = {};
};

/// Elements of T in 16 bytes.
template <class T>
constexpr int pack_numel = static_cast<int>(16 / sizeof(T));

/// Whether packs of n elements from p on, `ld` elements apart, can be accessed whole. Arrays that are not there can.
template <int n, class T>
bool packs_aligned(const T* p, std::int64_t ld = 0) {
  return reinterpret_cast<std::uintptr_t>(p) % Pack<T, n>::alignment == 0 &&
         static_cast<std::size_t>(ld) * sizeof(T) % Pack<T, n>::alignment == 0;
}

}  // namespace sluice::kernels::cuda
