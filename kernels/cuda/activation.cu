// SwiGLU and GELU, both through the logistic function s(z) = 1 / (1 + exp(-z)): silu(x) = x s(x), and the tanh form of
// GELU is x s(2u) with u = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = s(2u).
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

/// The quick quotient is good to 2 units in the last place, and 0 where exp(-z) is beyond 2^126.
__device__ float logistic(float z) { return __fdividef(1.0f, 1.0f + expf(-z)); }

template <class T>
struct SwigluForward {
  static constexpr int n = pack_numel<T>;
  const T *gate, *up;
  T* h;
  std::int64_t ld, h_ld;
  struct In {
    Pack<T, n> gate, up;
  };
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    return {Pack<T, n>::load(gate + r * ld + c, part), Pack<T, n>::load(up + r * ld + c, part)};
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const In& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float g = in.gate[j];
      v[j] = g * logistic(g) * in.up[j];
    }
    Pack<T, n>::of(v).store(h + r * h_ld + c, part);
  }
};

template <class T>
struct SwigluBackward {
  static constexpr int n = pack_numel<T>;
  const T *gate, *up;
  T *dh, *d_gate, *d_up;
  std::int64_t ld, dh_ld, d_ld;
  struct In {
    Pack<T, n> gate, up, dh;
  };
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    return {Pack<T, n>::load(gate + r * ld + c, part), Pack<T, n>::load(up + r * ld + c, part),
            Pack<T, n>::load(dh + r * dh_ld + c, part)};
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const In& in) const {
    float h[n], to_gate[n], to_up[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float g = in.gate[j], u = in.up[j], d = in.dh[j], s = logistic(g), silu = g * s;
      to_gate[j] = d * u * fmaf(silu, 1.0f - s, s);
      to_up[j] = d * silu;
      h[j] = silu * u;
    }
    Pack<T, n>::of(to_gate).store(d_gate + r * d_ld + c, part);
    Pack<T, n>::of(to_up).store(d_up + r * d_ld + c, part);
    Pack<T, n>::of(h).store(dh + r * dh_ld + c, part);
  }
};

constexpr float gelu_scale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;
constexpr float gelu_square_max = 1e30f;  ///< far beyond where the slope is 0 or 1; nothing times infinity is no number

__device__ float gelu_gate(float v) { return logistic(gelu_scale * fmaf(gelu_cubic * (v * v), v, v)); }

template <class T>
struct GeluForward {
  static constexpr int n = pack_numel<T>;
  const T* x;
  T* y;
  __device__ Pack<T, n> load(std::int64_t, std::int64_t i, Part part) const { return Pack<T, n>::load(x + i, part); }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const Pack<T, n>& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in[j] * gelu_gate(in[j]);
    Pack<T, n>::of(v).store(y + i, part);
  }
};

template <class T>
struct GeluBackward {
  static constexpr int n = pack_numel<T>;
  const T* x;
  T *dy, *dx;
  struct In {
    Pack<T, n> x, dy;
  };
  __device__ In load(std::int64_t, std::int64_t i, Part part) const {
    return {Pack<T, n>::load(x + i, part), Pack<T, n>::load(dy + i, part)};
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const In& in) const {
    float y[n], slope[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float v = in.x[j], s = gelu_gate(v);
      const float inner_slope = gelu_scale * fmaf(3 * gelu_cubic, fminf(v * v, gelu_square_max), 1.0f);
      // s (1 - s) vanishes where v and inner_slope are large: multiply it first, so that nothing overflows
      slope[j] = in.dy[j] * (s + s * (1.0f - s) * v * inner_slope);
      y[j] = v * s;
    }
    Pack<T, n>::of(y).store(dy + i, part);
    Pack<T, n>::of(slope).store(dx + i, part);
  }
};

}  // namespace

template <class T>
void swiglu_forward(const T* gate, const T* up, std::int64_t ld, std::int64_t rows, std::int64_t width, T* h,
                    std::int64_t h_ld, Stream& stream) {
  constexpr int n = pack_numel<T>;
  map(stream, "swiglu_forward", SwigluForward<T>{gate, up, h, ld, h_ld}, rows, width,
      packs_aligned<n>(gate, ld) && packs_aligned<n>(up, ld) && packs_aligned<n>(h, h_ld));
}

template <class T>
void swiglu_backward(const T* gate, const T* up, std::int64_t ld, T* dh, std::int64_t dh_ld, std::int64_t rows,
                     std::int64_t width, T* d_gate, T* d_up, std::int64_t d_ld, Stream& stream) {
  constexpr int n = pack_numel<T>;
  map(stream, "swiglu_backward", SwigluBackward<T>{gate, up, dh, d_gate, d_up, ld, dh_ld, d_ld}, rows, width,
      packs_aligned<n>(gate, ld) && packs_aligned<n>(up, ld) && packs_aligned<n>(dh, dh_ld) &&
          packs_aligned<n>(d_gate, d_ld) && packs_aligned<n>(d_up, d_ld));
}

template <class T>
void gelu_forward(const T* x, T* y, std::int64_t n, Stream& stream) {
  constexpr int pack = pack_numel<T>;
  map(stream, "gelu_forward", GeluForward<T>{x, y}, 1, n, packs_aligned<pack>(x) && packs_aligned<pack>(y));
}

template <class T>
void gelu_backward(const T* x, T* dy, T* dx, std::int64_t n, Stream& stream) {
  constexpr int pack = pack_numel<T>;
  map(stream, "gelu_backward", GeluBackward<T>{x, dy, dx}, 1, n,
      packs_aligned<pack>(x) && packs_aligned<pack>(dy) && packs_aligned<pack>(dx));
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                          \
  template void swiglu_forward<T>(const T*, const T*, std::int64_t, std::int64_t, std::int64_t, T*, std::int64_t,      \
                                  Stream&);                                                                            \
  template void swiglu_backward<T>(const T*, const T*, std::int64_t, T*, std::int64_t, std::int64_t, std::int64_t, T*, \
                                   T*, std::int64_t, Stream&);                                                         \
  template void gelu_forward<T>(const T*, T*, std::int64_t, Stream&);                                                  \
  template void gelu_backward<T>(const T*, T*, T*, std::int64_t, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
