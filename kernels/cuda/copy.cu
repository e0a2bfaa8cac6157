#include "kernels/cuda/copy.h"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

struct Fill {
  static constexpr int n = pack_numel<float>;
  float* x;
  float value;
  struct In {};
  __device__ In load(std::int64_t, std::int64_t, Part) const { return {}; }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const In&) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = value;
    Pack<float, n>::of(v).store(x + i, part);
  }
};

/// Rows of 16 bytes at a time, element by element (of T) where addresses do not allow that.
template <class T>
struct CopyRows {
  static constexpr int n = pack_numel<T>;
  const T* src;
  T* dst;
  std::int64_t src_ld, dst_ld;
  __device__ Pack<T, n> load(std::int64_t r, std::int64_t c, Part part) const {
    return Pack<T, n>::load(src + r * src_ld + c, part);
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const Pack<T, n>& in) const {
    in.store(dst + r * dst_ld + c, part);
  }
};

template <class T>
void copy_rows_as(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride, std::int64_t row_bytes,
                  std::int64_t rows, Stream& stream) {
  constexpr auto size = static_cast<std::int64_t>(sizeof(T));
  constexpr int n = pack_numel<T>;
  const CopyRows<T> f{static_cast<const T*>(src), static_cast<T*>(dst), src_stride / size, dst_stride / size};
  map(stream, "copy_rows", f, rows, row_bytes / size,
      packs_aligned<n>(f.src, f.src_ld) && packs_aligned<n>(f.dst, f.dst_ld));
}

constexpr unsigned piece_threads = 256;

/// Elements of T from the calling block's place on, in steps of the whole grid's row.
template <class T>
__device__ void copy_share(const CopyPiece& piece) {
  const auto* src = static_cast<const T*>(piece.src);
  auto* dst = static_cast<T*>(piece.dst);
  const std::int64_t numel = piece.bytes / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t step = std::int64_t{gridDim.x} * piece_threads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * piece_threads + threadIdx.x; i < numel; i += 4 * step) {
    T v[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < numel) v[k] = src[i + k * step];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (i + k * step < numel) dst[i + k * step] = v[k];
  }
}

__global__ void __launch_bounds__(piece_threads) copy_pieces_kernel(const CopyPiece* pieces, std::int64_t count) {
  for (std::int64_t p = blockIdx.y; p < count; p += gridDim.y) {
    const CopyPiece piece = pieces[p];
    const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(piece.src) |
                               reinterpret_cast<std::uintptr_t>(piece.dst) | static_cast<std::uintptr_t>(piece.bytes);
    if (all % 16 == 0)
      copy_share<uint4>(piece);
    else if (all % 4 == 0)
      copy_share<std::uint32_t>(piece);
    else
      copy_share<std::uint8_t>(piece);
  }
}

}  // namespace

void fill_f32(float* x, float value, std::int64_t n, Stream& stream) {
  map(stream, "fill_f32", Fill{x, value}, 1, n, packs_aligned<Fill::n>(x));
}

void copy_rows(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride, std::int64_t row_bytes,
               std::int64_t rows, Stream& stream) {
  const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(src) | reinterpret_cast<std::uintptr_t>(dst) |
                             static_cast<std::uintptr_t>(src_stride | dst_stride | row_bytes);
  if (all % 4 == 0)
    copy_rows_as<float>(src, src_stride, dst, dst_stride, row_bytes, rows, stream);
  else if (all % 2 == 0)
    copy_rows_as<bf16>(src, src_stride, dst, dst_stride, row_bytes, rows, stream);
  else
    copy_rows_as<std::uint8_t>(src, src_stride, dst, dst_stride, row_bytes, rows, stream);
}

void copy_pieces(const CopyPiece* pieces, std::int64_t count, std::int64_t largest_bytes, Stream& stream) {
  if (count <= 0 || largest_bytes <= 0) return;
  const std::int64_t lines = std::min<std::int64_t>(count, 65535);
  const std::int64_t columns = std::min(divide_up(largest_bytes, std::int64_t{piece_threads} * 4 * 16),
                                        std::max<std::int64_t>(1, most_blocks(stream) / lines));
  launch(stream, "copy_pieces", copy_pieces_kernel, dim3(static_cast<unsigned>(columns), static_cast<unsigned>(lines)),
         dim3(piece_threads), pieces, count);
}

void copy(void* dst, const void* src, std::size_t bytes, Stream& stream) {
  if (!stream.status()) return;
  stream.launched("copy");
  const cudaError_t error = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream.handle());
  if (error != cudaSuccess) stream.fail("cudaMemcpyAsync within the device", error);
}

void zero(void* dst, std::size_t bytes, Stream& stream) {
  if (!stream.status()) return;
  stream.launched("zero");
  const cudaError_t error = cudaMemsetAsync(dst, 0, bytes, stream.handle());
  if (error != cudaSuccess) stream.fail("cudaMemsetAsync", error);
}

}  // namespace sluice::kernels::cuda
