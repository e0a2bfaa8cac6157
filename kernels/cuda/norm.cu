#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace sluice::kernels::cuda {
namespace {

/// RMSNorm has no mean and no bias.
template <class T>
struct NormForward {
  const T *x, *weight, *bias;
  T* y;
  float *mean, *rstd;
  std::int64_t x_ld, y_ld, rows, width;
  float eps;
  bool aligned;
};

constexpr unsigned forward_threads = 256;

/// A block has a row at a time, which is read from memory once and then from the first-level cache.
template <class T, bool centred>
__global__ void __launch_bounds__(forward_threads) norm_forward_kernel(NormForward<T> a) {
  constexpr int n = pack_numel<T>;
  using Values = Pack<T, n>;
  const std::int64_t first = std::int64_t{threadIdx.x} * n, step = std::int64_t{blockDim.x} * n;
  const auto width = static_cast<float>(a.width);
  int turn = 0;
  for (std::int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* x = a.x + r * a.x_ld;
    float mean = 0;
    if constexpr (centred) {
      float sum[1] = {};
      for (std::int64_t c = first; c < a.width; c += step) {
        const Values v = Values::load(x + c, part_of<n>(c, a.width, a.aligned));
#pragma unroll
        for (int j = 0; j < n; ++j) sum[0] += v[j];
      }
      block_sums(sum, turn);
      turn = 1 - turn;
      mean = sum[0] / width;
    }
    float squares[1] = {};
    for (std::int64_t c = first; c < a.width; c += step) {
      const Part part = part_of<n>(c, a.width, a.aligned);
      const Values v = Values::load(x + c, part);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const float d = j < part.valid ? v[j] - mean : 0.0f;
        squares[0] = fmaf(d, d, squares[0]);
      }
    }
    block_sums(squares, turn);
    turn = 1 - turn;
    const float rstd = 1.0f / sqrtf(squares[0] / width + a.eps);
    for (std::int64_t c = first; c < a.width; c += step) {
      const Part part = part_of<n>(c, a.width, a.aligned);
      const Values v = Values::load(x + c, part), w = Values::load(a.weight + c, part);
      Values b;
      if constexpr (centred) b = Values::load(a.bias + c, part);
      float y[n];
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const float normal = (v[j] - mean) * rstd;
        y[j] = centred ? fmaf(normal, w[j], b[j]) : normal * w[j];
      }
      Values::of(y).store(a.y + r * a.y_ld + c, part);
    }
    if (threadIdx.x == 0) {
      if constexpr (centred) a.mean[r] = mean;
      a.rstd[r] = rstd;
    }
  }
}

template <class T, bool centred>
void forward(const char* name, NormForward<T> a, Stream& stream) {
  if (a.rows <= 0) return;
  constexpr int n = pack_numel<T>;
  a.aligned = packs_aligned<n>(a.x, a.x_ld) && packs_aligned<n>(a.y, a.y_ld) && packs_aligned<n>(a.weight) &&
              packs_aligned<n>(a.bias);
  launch(stream, name, norm_forward_kernel<T, centred>, dim3(some_blocks(stream, a.rows)),
         dim3(row_threads(divide_up(a.width, n), forward_threads)), a);
}

template <class T>
struct NormBackward {
  const T *x, *weight, *dy;
  const float *mean, *rstd;
  T* dx;
  float* sums;  ///< of blocks of rows: [blocks][weight, bias with LayerNorm][width]
  std::int64_t x_ld, dy_ld, dx_ld, rows, width, per_block;
  bool add_to_dx, aligned;
};

/// What one pack of a row is in the backward pass: n = (x - mean) rstd and g = dy weight.
template <class T>
struct Slope {
  static constexpr int n = pack_numel<T>;
  Pack<T, n> x, dy;
  __device__ void load(const NormBackward<T>& a, std::int64_t r, std::int64_t c, Part part) {
    x = Pack<T, n>::load(a.x + r * a.x_ld + c, part);
    dy = Pack<T, n>::load(a.dy + r * a.dy_ld + c, part);
  }
  /// What the gradient is added to.
  __device__ static Pack<T, n> start(const NormBackward<T>& a, std::int64_t r, std::int64_t c, Part part) {
    return a.add_to_dx ? Pack<T, n>::load(a.dx + r * a.dx_ld + c, part) : Pack<T, n>();
  }
  /// Elements that are not there have dy = 0 and count nothing.
  template <bool centred>
  __device__ void add_to(float mean, float rstd, const Pack<T, n>& w, float (&sums)[2], float (&d_weight)[n],
                         float (&d_bias)[n]) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float d = dy[j], normal = (x[j] - mean) * rstd, g = d * w[j];
      sums[0] += g;
      sums[1] = fmaf(g, normal, sums[1]);
      d_weight[j] = fmaf(d, normal, d_weight[j]);
      if constexpr (centred) d_bias[j] += d;
    }
  }
  /// dx = rstd (g - [mean(g)] - n mean(g n)), the bracket for LayerNorm.
  __device__ void store(const NormBackward<T>& a, std::int64_t r, std::int64_t c, Part part, const Pack<T, n>& w,
                        const Pack<T, n>& old, float mean, float rstd, float mean_g, float mean_gn) const {
    float dx[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const float normal = (x[j] - mean) * rstd, g = dy[j] * w[j];
      dx[j] = rstd * fmaf(-normal, mean_gn, g - mean_g);
      if (a.add_to_dx) dx[j] = old[j] + dx[j];
    }
    Pack<T, n>::of(dx).store(a.dx + r * a.dx_ld + c, part);
  }
};

/// Rows of one block after the other, each a pack to a thread: x and dy are read once, the next row's while this one's
/// sums are on their way, and the columns' sums stay in registers.
template <class T, bool centred>
__global__ void __launch_bounds__(most_threads) norm_backward_narrow(NormBackward<T> a) {
  constexpr int n = pack_numel<T>;
  const std::int64_t begin = blockIdx.x * a.per_block, c = std::int64_t{threadIdx.x} * n;
  const std::int64_t end = a.rows < begin + a.per_block ? a.rows : begin + a.per_block;
  const Part part = c < a.width ? part_of<n>(c, a.width, a.aligned) : Part{};
  const float share = 1.0f / static_cast<float>(a.width);
  const Pack<T, n> w = Pack<T, n>::load(a.weight + c, part);
  float d_weight[n] = {}, d_bias[n] = {};
  Slope<T> row, next;
  row.load(a, begin, c, part);
  int turn = 0;
#pragma unroll 1
  for (std::int64_t r = begin; r < end; ++r) {
    const float mean = centred ? a.mean[r] : 0.0f, rstd = a.rstd[r];
    float sums[2] = {};  // g, g n
    row.template add_to<centred>(mean, rstd, w, sums, d_weight, d_bias);
    const Pack<T, n> old = Slope<T>::start(a, r, c, part);
    if (r + 1 < end) next.load(a, r + 1, c, part);
    block_sums(sums, turn);
    turn = 1 - turn;
    row.store(a, r, c, part, w, old, mean, rstd, centred ? sums[0] * share : 0.0f, sums[1] * share);
    row = next;
  }
  constexpr int kinds = centred ? 2 : 1;
  float* to = a.sums + blockIdx.x * kinds * a.width + c;
  if (part.valid == 0) return;
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (j < part.valid) {
      to[j] = d_weight[j];
      if constexpr (centred) to[a.width + j] = d_bias[j];
    }
}

/// Rows that are wider than a block: the columns' sums lie in the workspace, where one thread alone has a column.
template <class T, bool centred>
__global__ void __launch_bounds__(most_threads) norm_backward_wide(NormBackward<T> a) {
  constexpr int n = pack_numel<T>, kinds = centred ? 2 : 1;
  const std::int64_t begin = blockIdx.x * a.per_block, step = std::int64_t{blockDim.x} * n;
  const std::int64_t end = a.rows < begin + a.per_block ? a.rows : begin + a.per_block;
  const float share = 1.0f / static_cast<float>(a.width);
  float* const sums = a.sums + blockIdx.x * kinds * a.width;
  int turn = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const float mean = centred ? a.mean[r] : 0.0f, rstd = a.rstd[r];
    float total[2] = {};
    for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < a.width; c += step) {
      const Part part = part_of<n>(c, a.width, a.aligned), single{part.valid, false};
      const Pack<T, n> w = Pack<T, n>::load(a.weight + c, part);
      Slope<T> row;
      row.load(a, r, c, part);
      float d_weight[n] = {}, d_bias[n] = {};
      if (r > begin) {
        const Pack<float, n> was = Pack<float, n>::load(sums + c, single);
#pragma unroll
        for (int j = 0; j < n; ++j) d_weight[j] = was[j];
        if constexpr (centred) {
          const Pack<float, n> bias_was = Pack<float, n>::load(sums + a.width + c, single);
#pragma unroll
          for (int j = 0; j < n; ++j) d_bias[j] = bias_was[j];
        }
      }
      row.template add_to<centred>(mean, rstd, w, total, d_weight, d_bias);
      Pack<float, n>::of(d_weight).store(sums + c, single);
      if constexpr (centred) Pack<float, n>::of(d_bias).store(sums + a.width + c, single);
    }
    block_sums(total, turn);
    turn = 1 - turn;
    for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < a.width; c += step) {
      const Part part = part_of<n>(c, a.width, a.aligned);
      Slope<T> row;
      row.load(a, r, c, part);
      const Pack<T, n> w = Pack<T, n>::load(a.weight + c, part), old = Slope<T>::start(a, r, c, part);
      row.store(a, r, c, part, w, old, mean, rstd, centred ? total[0] * share : 0.0f, total[1] * share);
    }
  }
}

template <class T, bool centred>
void backward(const char* name, NormBackward<T> a, float* d_weight, float* d_bias, Stream& stream) {
  if (a.rows <= 0 || a.width <= 0) return;
  constexpr int n = pack_numel<T>, kinds = centred ? 2 : 1;
  a.per_block = rows_per_block(a.rows);
  a.aligned = packs_aligned<n>(a.x, a.x_ld) && packs_aligned<n>(a.dy, a.dy_ld) && packs_aligned<n>(a.dx, a.dx_ld) &&
              packs_aligned<n>(a.weight);
  const std::int64_t blocks = row_blocks(a.rows), packs = divide_up(a.width, n);
  const dim3 threads(row_threads(packs, most_threads));
  launch(stream, name, packs <= most_threads ? norm_backward_narrow<T, centred> : norm_backward_wide<T, centred>,
         dim3(static_cast<unsigned>(blocks)), threads, a);
  add_row_blocks("norm backward (weight)", a.sums, blocks, kinds * a.width, a.width, d_weight, stream);
  if (centred)
    add_row_blocks("norm backward (bias)", a.sums + a.width, blocks, kinds * a.width, a.width, d_bias, stream);
}

}  // namespace

std::int64_t norm_workspace_floats(std::int64_t rows, std::int64_t width) { return 2 * row_blocks(rows) * width; }

template <class T>
void rmsnorm_forward(const T* x, std::int64_t x_ld, const T* weight, float eps, std::int64_t rows, std::int64_t width,
                     T* y, std::int64_t y_ld, float* rstd, Stream& stream) {
  forward<T, false>("rmsnorm_forward", {x, weight, nullptr, y, nullptr, rstd, x_ld, y_ld, rows, width, eps, false},
                    stream);
}

template <class T>
void rmsnorm_backward(const T* x, std::int64_t x_ld, const T* weight, const float* rstd, const T* dy,
                      std::int64_t dy_ld, std::int64_t rows, std::int64_t width, T* dx, std::int64_t dx_ld,
                      bool add_to_dx, float* d_weight, float* workspace, Stream& stream) {
  backward<T, false>(
      "rmsnorm_backward",
      {x, weight, dy, nullptr, rstd, dx, workspace, x_ld, dy_ld, dx_ld, rows, width, 0, add_to_dx, false}, d_weight,
      nullptr, stream);
}

template <class T>
void layernorm_forward(const T* x, const T* weight, const T* bias, float eps, std::int64_t rows, std::int64_t width,
                       T* y, float* mean, float* rstd, Stream& stream) {
  forward<T, true>("layernorm_forward", {x, weight, bias, y, mean, rstd, width, width, rows, width, eps, false},
                   stream);
}

template <class T>
void layernorm_backward(const T* x, const T* weight, const float* mean, const float* rstd, const T* dy,
                        std::int64_t rows, std::int64_t width, T* dx, bool add_to_dx, float* d_weight, float* d_bias,
                        float* workspace, Stream& stream) {
  backward<T, true>("layernorm_backward",
                    {x, weight, dy, mean, rstd, dx, workspace, width, width, width, rows, width, 0, add_to_dx, false},
                    d_weight, d_bias, stream);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                                     \
  template void rmsnorm_forward<T>(const T*, std::int64_t, const T*, float, std::int64_t, std::int64_t, T*,       \
                                   std::int64_t, float*, Stream&);                                                \
  template void rmsnorm_backward<T>(const T*, std::int64_t, const T*, const float*, const T*, std::int64_t,       \
                                    std::int64_t, std::int64_t, T*, std::int64_t, bool, float*, float*, Stream&); \
  template void layernorm_forward<T>(const T*, const T*, const T*, float, std::int64_t, std::int64_t, T*, float*, \
                                     float*, Stream&);                                                            \
  template void layernorm_backward<T>(const T*, const T*, const float*, const float*, const T*, std::int64_t,     \
                                      std::int64_t, T*, bool, float*, float*, float*, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
