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

/// Of every head; `threads` of them, a power of two, have a row of one head together, and each of them one pack.
template <class T>
struct HeadsForward {
  HeadNorms<T> norms;
  const T* x;
  T* y;
  float* rstd;
  std::int64_t ld, rows;
  float eps;
  bool aligned;
};

template <class T, unsigned threads>
__global__ void __launch_bounds__(forward_threads) heads_forward_kernel(HeadsForward<T> a) {
  constexpr int n = pack_numel<T>;
  constexpr std::int64_t rows = forward_threads / threads;
  const std::int64_t head = blockIdx.y, c = std::int64_t{threadIdx.x % threads} * n;
  const T* const weight = head < a.norms.queries ? a.norms.query_weight : a.norms.key_weight;
  const Part column = c < a.norms.dim ? part_of<n>(c, a.norms.dim, a.aligned) : Part{};
  const Pack<T, n> w = Pack<T, n>::load(weight + c, column);
  // All of a block go on together: partners may have other rows.
  for (std::int64_t first = blockIdx.x * rows; first < a.rows; first += gridDim.x * rows) {
    const std::int64_t r = first + threadIdx.x / threads, at = r * a.ld + head * a.norms.dim + c;
    const Part part = r < a.rows ? column : Part{};
    const Pack<T, n> v = Pack<T, n>::load(a.x + at, part);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) squares = fmaf(v[j], v[j], squares);
#pragma unroll
    for (unsigned with = threads / 2; with > 0; with /= 2) squares += __shfl_xor_sync(all_lanes, squares, with);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(a.norms.dim) + a.eps);
    float y[n];
#pragma unroll
    for (int j = 0; j < n; ++j) y[j] = v[j] * rstd * w[j];
    Pack<T, n>::of(y).store(a.y + at, part);
    if (c == 0 && r < a.rows) a.rstd[head * a.rows + r] = rstd;
  }
}

template <class T, unsigned threads>
void heads_forward(const HeadsForward<T>& a, Stream& stream) {
  const std::int64_t blocks = divide_up(a.rows, forward_threads / threads);
  launch(
      stream, "rmsnorm_heads_forward", heads_forward_kernel<T, threads>,
      dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks, 0x7fffffff)), static_cast<unsigned>(a.norms.heads())),
      dim3(forward_threads), a);
}

template <class T>
struct NormBackward {
  const T *x, *weight, *dy;
  const float *mean, *rstd;
  T* dx;
  float* sums;  ///< of blocks of rows: [blocks][weight, bias with LayerNorm][width]
  std::int64_t x_ld, dy_ld, dx_ld, rows, width, per_block;
  bool add_to_dx, aligned;
  const T* key_weight = nullptr;  ///< norms of heads: of those from `queries` on
  std::int64_t queries = 0;

  /// What a block has of norms of heads, each of which has blocks of its own.
  __device__ void choose_head(std::int64_t head, std::int64_t blocks) {
    if (head >= queries) weight = key_weight;
    x += head * width, dy += head * width, dx += head * width;
    rstd += head * rows;
    sums += head * blocks * width;
  }
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
template <class T, bool centred, bool heads = false>
__global__ void __launch_bounds__(heads ? warp_threads : most_threads) norm_backward_narrow(NormBackward<T> a) {
  constexpr int n = pack_numel<T>;
  if constexpr (heads) a.choose_head(blockIdx.y, gridDim.x);
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

template <class T>
void heads_backward(NormBackward<T> a, const HeadNorms<T>& norms, float* d_query_weight, float* d_key_weight,
                    Stream& stream) {
  constexpr int n = pack_numel<T>;
  a.per_block = rows_per_block(a.rows);
  a.aligned = norms.dim % n == 0 && packs_aligned<n>(a.x, a.x_ld) && packs_aligned<n>(a.dy, a.dy_ld) &&
              packs_aligned<n>(a.dx, a.dx_ld) && packs_aligned<n>(a.weight) && packs_aligned<n>(a.key_weight);
  const std::int64_t blocks = row_blocks(a.rows);
  launch(stream, "rmsnorm_heads_backward", norm_backward_narrow<T, false, true>,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(norms.heads())),
         dim3(row_threads(divide_up(a.width, n), most_threads)), a);
  add_row_blocks("norm backward (queries' weight)", a.sums, norms.queries * blocks, a.width, a.width, d_query_weight,
                 stream);
  add_row_blocks("norm backward (keys' weight)", a.sums + norms.queries * blocks * a.width, norms.keys * blocks,
                 a.width, a.width, d_key_weight, stream);
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
void rmsnorm_heads_forward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, float eps, std::int64_t rows, T* y,
                           float* rstd, Stream& stream) {
  constexpr int n = pack_numel<T>;
  if (rows <= 0 || norms.heads() <= 0 || norms.dim <= 0) return;
  const std::int64_t packs = divide_up(norms.dim, n);
  if (packs > warp_threads) {
    for (std::int64_t head = 0; head < norms.heads(); ++head)
      rmsnorm_forward(x + head * norms.dim, ld, norms.weight(head), eps, rows, norms.dim, y + head * norms.dim, ld,
                      rstd + head * rows, stream);
    return;
  }
  const bool aligned = norms.dim % n == 0 && packs_aligned<n>(x, ld) && packs_aligned<n>(y, ld) &&
                       packs_aligned<n>(norms.query_weight) && packs_aligned<n>(norms.key_weight);
  const HeadsForward<T> call{norms, x, y, rstd, ld, rows, eps, aligned};
  packs > 16 ? heads_forward<T, 32>(call, stream) : heads_forward<T, 16>(call, stream);
}

template <class T>
void rmsnorm_heads_backward(const HeadNorms<T>& norms, const T* x, std::int64_t ld, const float* rstd, const T* dy,
                            std::int64_t rows, T* dx, float* d_query_weight, float* d_key_weight, float* workspace,
                            Stream& stream) {
  if (rows <= 0 || norms.heads() <= 0 || norms.dim <= 0) return;
  if (divide_up(norms.dim, pack_numel<T>) <= warp_threads)
    return heads_backward<T>({x, norms.query_weight, dy, nullptr, rstd, dx, workspace, ld, ld, ld, rows, norms.dim, 0,
                              false, false, norms.key_weight, norms.queries},
                             norms, d_query_weight, d_key_weight, stream);
  for (std::int64_t head = 0; head < norms.heads(); ++head) {
    const std::int64_t column = head * norms.dim;
    rmsnorm_backward(x + column, ld, norms.weight(head), rstd + head * rows, dy + column, ld, rows, norms.dim,
                     dx + column, ld, false, head < norms.queries ? d_query_weight : d_key_weight, workspace, stream);
  }
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
#define SLUICE_INSTANTIATE(T)                                                                                          \
  template void rmsnorm_forward<T>(const T*, std::int64_t, const T*, float, std::int64_t, std::int64_t, T*,            \
                                   std::int64_t, float*, Stream&);                                                     \
  template void rmsnorm_backward<T>(const T*, std::int64_t, const T*, const float*, const T*, std::int64_t,            \
                                    std::int64_t, std::int64_t, T*, std::int64_t, bool, float*, float*, Stream&);      \
  template void rmsnorm_heads_forward<T>(const HeadNorms<T>&, const T*, std::int64_t, float, std::int64_t, T*, float*, \
                                         Stream&);                                                                     \
  template void rmsnorm_heads_backward<T>(const HeadNorms<T>&, const T*, std::int64_t, const float*, const T*,         \
                                          std::int64_t, T*, float*, float*, float*, Stream&);                          \
  template void layernorm_forward<T>(const T*, const T*, const T*, float, std::int64_t, std::int64_t, T*, float*,      \
                                     float*, Stream&);                                                                 \
  template void layernorm_backward<T>(const T*, const T*, const float*, const float*, const T*, std::int64_t,          \
                                      std::int64_t, T*, bool, float*, float*, float*, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
