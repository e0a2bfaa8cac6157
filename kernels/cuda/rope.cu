#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Of 32-bit numbers where that is enough: a quotient of 64 bits takes some eighty instructions.
__device__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Where tokens stand: one after the other in rows of `sequence`, or as `each` says.
struct Places {
  std::int64_t sequence, first;
  const std::int32_t* each;
  __device__ std::int64_t operator()(std::int64_t token) const {
    return each != nullptr ? each[token] : first + token - quotient(token, sequence) * sequence;
  }
};

/// Row r is head r % heads of token r / heads, its columns the first half of the head.
template <class T>
struct Rope {
  static constexpr int n = pack_numel<T>;
  T* x;
  std::int64_t stride, heads, half;
  const float *cos, *sin;
  Places places;
  float sign;
  struct In {
    Pack<T, n> first, second;
    Pack<float, n> cos, sin;
  };
  __device__ T* head(std::int64_t token, std::int64_t r) const {
    return x + token * stride + (r - token * heads) * (2 * half);
  }
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    const std::int64_t token = quotient(r, heads);
    const T* from = head(token, r) + c;
    const std::int64_t angle = places(token) * half + c;
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

/// Row r is a token, its columns the frequencies.
struct RopeRows {
  static constexpr int n = 4;
  const float* frequencies;
  std::int64_t half;
  double scale;
  Places places;
  float *cos, *sin;
  __device__ Pack<float, n> load(std::int64_t, std::int64_t c, Part part) const {
    return Pack<float, n>::load(frequencies + c, part);
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const Pack<float, n>& in) const {
    const auto position = static_cast<float>(places(r));
    float of_cos[n], of_sin[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const auto angle = static_cast<double>(position * in[j]);
      of_cos[j] = static_cast<float>(::cos(angle) * scale);
      of_sin[j] = static_cast<float>(::sin(angle) * scale);
    }
    Pack<float, n>::of(of_cos).store(cos + r * half + c, part);
    Pack<float, n>::of(of_sin).store(sin + r * half + c, part);
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
      Rope<T>{x, stride, heads, half, cos, sin, {sequence, position0, token_positions}, inverse ? -1.0f : 1.0f},
      tokens * heads, half,
      packs_aligned<n>(x, stride) && packs_aligned<n>(x, half) && packs_aligned<n>(cos, half) &&
          packs_aligned<n>(sin, half));
}

void rope_rows(const float* frequencies, std::int64_t half, double scale, std::int64_t sequence, std::int64_t position0,
               std::int64_t rows, float* cos, float* sin, const std::int32_t* token_positions, Stream& stream) {
  constexpr int n = RopeRows::n;
  map(stream, "rope_rows", RopeRows{frequencies, half, scale, {sequence, position0, token_positions}, cos, sin}, rows,
      half, packs_aligned<n>(frequencies, half) && packs_aligned<n>(cos, half) && packs_aligned<n>(sin, half));
}

template void rope<float>(float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                          const float*, const float*, bool, const std::int32_t*, Stream&);
template void rope<bf16>(bf16*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         const float*, const float*, bool, const std::int32_t*, Stream&);

}  // namespace sluice::kernels::cuda
