#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

/// Eight bytes of one and sixteen of the other: both accesses of a warp are one piece of memory.
template <class From, class To>
struct Convert {
  static constexpr int n = 4;
  const From* src;
  To* dst;
  __device__ Pack<From, n> load(std::int64_t, std::int64_t i, Part part) const {
    return Pack<From, n>::load(src + i, part);
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const Pack<From, n>& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in[j];
    Pack<To, n>::of(v).store(dst + i, part);
  }
};

/// out[r, :] = a[r, :] + b[r, :] with a row stride for each
template <class T>
struct Add {
  static constexpr int n = pack_numel<T>;
  const T *a, *b;
  T* out;
  std::int64_t ld, b_ld;
  struct In {
    Pack<T, n> a, b;
  };
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    return {Pack<T, n>::load(a + r * ld + c, part), Pack<T, n>::load(b + r * b_ld + c, part)};
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const In& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in.a[j] + in.b[j];
    Pack<T, n>::of(v).store(out + r * ld + c, part);
  }
};

/// y += x. Packs as in Convert.
struct AddWidened {
  static constexpr int n = 4;
  const bf16* x;
  float* y;
  struct In {
    Pack<bf16, n> x;
    Pack<float, n> y;
  };
  __device__ In load(std::int64_t, std::int64_t i, Part part) const {
    return {Pack<bf16, n>::load(x + i, part), Pack<float, n>::load(y + i, part)};
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const In& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in.y[j] + in.x[j];
    Pack<float, n>::of(v).store(y + i, part);
  }
};

/// out = x + sum + bias in dense rows; x and bias may be null. Packs as in Convert.
template <class T>
struct AddSum {
  static constexpr int n = 4;
  const T* x;
  const float* sum;
  const T* bias;
  T* out;
  std::int64_t width;
  struct In {
    Pack<T, n> x;
    Pack<float, n> sum;
    Pack<T, n> bias;
  };
  __device__ In load(std::int64_t r, std::int64_t c, Part part) const {
    In in;
    in.sum = Pack<float, n>::load(sum + r * width + c, part);
    if (x != nullptr) in.x = Pack<T, n>::load(x + r * width + c, part);
    if (bias != nullptr) in.bias = Pack<T, n>::load(bias + c, part);
    return in;
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const In& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      v[j] = x != nullptr ? in.x[j] + in.sum[j] : in.sum[j];
      if (bias != nullptr) v[j] += in.bias[j];
    }
    Pack<T, n>::of(v).store(out + r * width + c, part);
  }
};

template <class From, class To>
void convert(const char* name, const From* src, To* dst, std::int64_t n, Stream& stream) {
  constexpr int pack = Convert<From, To>::n;
  map(stream, name, Convert<From, To>{src, dst}, 1, n, packs_aligned<pack>(src) && packs_aligned<pack>(dst));
}

template <class T>
void add_rows(const char* name, const Add<T>& f, std::int64_t rows, std::int64_t width, Stream& stream) {
  constexpr int n = Add<T>::n;
  map(stream, name, f, rows, width,
      packs_aligned<n>(f.a, f.ld) && packs_aligned<n>(f.b, f.b_ld) && packs_aligned<n>(f.out, f.ld));
}

}  // namespace

void widen(const bf16* src, float* dst, std::int64_t n, Stream& stream) { convert("widen", src, dst, n, stream); }
void widen(const float* src, float* dst, std::int64_t n, Stream& stream) { convert("widen", src, dst, n, stream); }
void narrow(const float* src, bf16* dst, std::int64_t n, Stream& stream) { convert("narrow", src, dst, n, stream); }
void narrow(const float* src, float* dst, std::int64_t n, Stream& stream) { convert("narrow", src, dst, n, stream); }

void add_f32(const float* x, float* y, std::int64_t n, Stream& stream) {
  add_rows("add_f32", Add<float>{y, x, y, 0, 0}, 1, n, stream);
}

void add_widened(const bf16* x, float* y, std::int64_t n, Stream& stream) {
  constexpr int pack = AddWidened::n;
  map(stream, "add_widened", AddWidened{x, y}, 1, n, packs_aligned<pack>(x) && packs_aligned<pack>(y));
}
void add_widened(const float* x, float* y, std::int64_t n, Stream& stream) { add_f32(x, y, n, stream); }

template <class T>
void add(const T* a, const T* b, T* out, std::int64_t n, Stream& stream) {
  add_rows("add", Add<T>{a, b, out, 0, 0}, 1, n, stream);
}

template <class T>
void add_bias(T* x, std::int64_t ld, const T* bias, std::int64_t rows, std::int64_t width, Stream& stream) {
  add_rows("add_bias", Add<T>{x, bias, x, ld, 0}, rows, width, stream);
}

template <class T>
void add_sum(const T* x, const float* sum, const T* bias, T* out, std::int64_t rows, std::int64_t width,
             Stream& stream) {
  constexpr int n = AddSum<T>::n;
  map(stream, "add_sum", AddSum<T>{x, sum, bias, out, width}, rows, width,
      packs_aligned<n>(x, width) && packs_aligned<n>(sum, width) && packs_aligned<n>(bias) &&
          packs_aligned<n>(out, width));
}

template <class T>
void bias_gradient(const T* dy, std::int64_t ld, std::int64_t rows, std::int64_t width, float* d_bias, float* workspace,
                   Stream& stream) {
  if (rows <= 0 || width <= 0) return;
  constexpr int n = pack_numel<T>;
  const dim3 blocks(static_cast<unsigned>(divide_up(width, std::int64_t{column_lanes} * n)),
                    static_cast<unsigned>(row_blocks(rows)));
  launch(stream, "bias_gradient", column_sums_kernel<T>, blocks, dim3(column_lanes, column_rows), dy, ld, rows,
         rows_per_block(rows), width, workspace, packs_aligned<n>(dy, ld));
  add_row_blocks("bias_gradient (sum of blocks)", workspace, row_blocks(rows), width, width, d_bias, stream);
}

std::int64_t bias_gradient_workspace_floats(std::int64_t rows, std::int64_t width) { return row_blocks(rows) * width; }

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type.
#define SLUICE_INSTANTIATE(T)                                                                          \
  template void add<T>(const T*, const T*, T*, std::int64_t, Stream&);                                 \
  template void add_bias<T>(T*, std::int64_t, const T*, std::int64_t, std::int64_t, Stream&);          \
  template void add_sum<T>(const T*, const float*, const T*, T*, std::int64_t, std::int64_t, Stream&); \
  template void bias_gradient<T>(const T*, std::int64_t, std::int64_t, std::int64_t, float*, float*, Stream&);
// NOLINTEND(bugprone-macro-parentheses)
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(bf16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice::kernels::cuda
