#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Row r is head r % heads of token r / heads, its columns the first half of the head.
template <class T>
struct Rope {
  static constexpr int n = pack_numel<T>;
  T* x;
  std::int64_t stride, sequence, position0, heads, half;
  const float *cos, *sin;
  const std::int32_t* token_positions;
  float sign;
  struct In {
    Pack<T, n> first, second;
    Pack<float, n> cos, sin;
  };
  __device__ T* head(std::int64_t token, std::int64_t r) const {
    return x + token * stride + (r - token * heads) * (2 * half);
  }
  /// Of 32-bit numbers where that is enough: a quotient of 64 bits takes some eighty instructions.
  __device__ static std::int64_t quotient(std::int64_t a, std::int64_t b) {
    if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
    return a / b;
  }
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    const std::int64_t token = quotient(r, heads);
    const std::int64_t position =
        token_positions != nullptr ? token_positions[token] : position0 + token - quotient(token, sequence) * sequence;
    const T* from = head(token, r) + c;
    const std::int64_t angle = position * half + c;
    return {Pack<T, n>::load(from, part), Pack<T, n>::load(from + half, part), Pack<float, n>::load(cos + angle, part),
            Pack<float, n>::load(sin + angle, part)};
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const In& in) const {
    float first[n], second[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float a = in.first[j], b = in.second[j], co = in.cos[j], si = in.sin[j] * sign;
      first[j] = fmaf(-b, si, a * co);
      second[j] = fmaf(a, si, b * co);
    }
    T* to = head(quotient(r, heads), r) + c;
    Pack<T, n>::of(first).store(to, part);
    Pack<T, n>::of(second).store(to + half, part);
  }
};

}  // namespace

template <class T>
void rope(T* x, std::int64_t stride, std::int64_t tokens, std::int64_t sequence, std::int64_t position0,
          std::int64_t heads, std::int64_t head_dim, const float* cos, const float* sin, bool inverse,
          const std::int32_t* token_positions, Stream& stream) {
  constexpr int n = pack_numel<T>;
  const std::int64_t half = head_dim / 2;
  map(stream, "rope",
      Rope<T>{x, stride, sequence, position0, heads, half, cos, sin, token_positions, inverse ? -1.0f : 1.0f},
      tokens * heads, half,
      packs_aligned<n>(x, stride) && packs_aligned<n>(x, half) && packs_aligned<n>(cos, half) &&
          packs_aligned<n>(sin, half));
}

template void rope<float>(float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          const float*, const float*, bool, const std::int32_t*, Stream&);
template void rope<bf16>(bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         const float*, const float*, bool, const std::int32_t*, Stream&);

}  // namespace sluice::kernels::cuda
