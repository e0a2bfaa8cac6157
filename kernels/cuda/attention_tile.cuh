// Tiles of bf16 rows in shared memory, their products on tensor cores, and the way of results back (internal to
// attention).
#pragma once

#include "kernels/cuda/mma.cuh"

namespace sluice::kernels::cuda {

/// Rows of D elements, in chunks of 16 bytes. ldmatrix takes eight rows at once: they begin in different banks because
/// chunks change places with the row, or, where a row has no multiple of 8 chunks, because it has an odd number.
template <int D>
struct Tile {
  static constexpr int chunks = D / 8, stride = chunks % 8 == 0 ? chunks : chunks | 1;
  static constexpr int numel(int rows) { return rows * stride; }  ///< in chunks
  static constexpr std::size_t bytes(int rows) { return static_cast<std::size_t>(rows) * stride * sizeof(uint4); }
  static __device__ uint4* chunk(uint4* tile, int row, int c) {
    const int at = row * stride + (chunks % 8 == 0 ? c ^ (row & 7) : c);
    return tile + at;
  }
  static __device__ const uint4* chunk(const uint4* tile, int row, int c) {
    return chunk(const_cast<uint4*>(tile), row, c);
  }
};

/// load_rows where the threads of a block begin whole rows together and addresses are aligned: a thread keeps its
/// column, and neither that nor how the row's chunks change places has to be found out again: what is issued beside a
/// copy is time that tensor cores wait. Nothing is read where nothing is there.
template <int D, int rows, int threads>
__device__ void load_whole_rows(uint4* tile, const bf16* head, std::int64_t stride, int begin, int end, int dim) {
  constexpr int chunks = Tile<D>::chunks, step = threads / chunks;
  const int first = thread_here() / chunks, c = thread_here() % chunks;
  const int left = 8 * c < dim ? end - begin - first : 0;  // aligned: dim has whole chunks
  const bf16* from = head + (begin + first) * stride + std::int64_t{8} * c;
  uint4* const to = Tile<D>::chunk(tile, first, c);
#pragma unroll 1
  for (int i = 0; i < rows; i += step, from += step * stride)
    copy_16_async(to + i * Tile<D>::stride, from, i < left ? 16 : 0);
}

/// The same one by one, where addresses are not aligned; complete when it returns.
template <int D, int rows, int threads>
__device__ void load_elements(uint4* tile, const bf16* head, std::int64_t stride, int begin, int end, int dim) {
#pragma unroll 1
  for (int i = thread_here(); i < rows * D; i += threads) {
    const int row = i / D, column = i % D;
    const bool there = begin + row < end && column < dim;
    reinterpret_cast<bf16*>(Tile<D>::chunk(tile, row, column / 8))[column % 8] =
        there ? head[(begin + row) * stride + column] : bf16{};
  }
}

/// Starts the copy of rows [begin, begin + rows) of a head into a tile, zeros for rows from `end` on and for columns
/// from `dim` on; without `aligned` the copy is complete when it returns.
template <int D, int rows, int threads>
__device__ void load_rows(uint4* tile, const bf16* head, std::int64_t stride, int begin, int end, int dim,
                          bool aligned) {
  constexpr int chunks = Tile<D>::chunks, step = threads % chunks == 0 ? threads / chunks : 1;
  if (!aligned) return load_elements<D, rows, threads>(tile, head, stride, begin, end, dim);
  if constexpr (step % 8 == 0 && rows % step == 0) {
    load_whole_rows<D, rows, threads>(tile, head, stride, begin, end, dim);
  } else {
#pragma unroll 1
    for (int i = thread_here(); i < rows * chunks; i += threads) {
      const int row = i / chunks, c = i % chunks;
      const bool there = begin + row < end && 8 * c < dim;
      copy_16_async(Tile<D>::chunk(tile, row, c), head + (begin + row) * stride + std::int64_t{8} * c, there ? 16 : 0);
    }
  }
}

__device__ inline int lane() { return static_cast<int>(threadIdx.x % warp_threads); }
__device__ inline int warp() { return static_cast<int>(threadIdx.x / warp_threads); }

/// Accumulators of a warp: mt x nt fragments of 16 rows and 8 columns.
template <int mt, int nt>
using Fragments = float[mt][nt][4];

template <int mt, int nt>
__device__ void clear(Fragments<mt, nt>& c) {
#pragma unroll
  for (int m = 0; m < mt; ++m)
#pragma unroll
    for (int n = 0; n < nt; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
}

/// c[16 mt, 8 nt] = rows [a_row, a_row + 16 mt) of a times rows [0, 8 nt) of b, over their D columns.
template <int D, int mt, int nt>
__device__ void products(Fragments<mt, nt>& c, const uint4* a, int a_row, const uint4* b) {
  clear<mt, nt>(c);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t fa[mt][4];
#pragma unroll
    for (int m = 0; m < mt; ++m)
      load_matrices(fa[m], Tile<D>::chunk(a, a_row + 16 * m + lane() % 16, 2 * k + lane() / 16));
#pragma unroll
    for (int n = 0; n < nt; n += 2) {
      std::uint32_t fb[4];
      load_matrices(fb, Tile<D>::chunk(b, 8 * n + lane() / 16 * 8 + lane() % 8, 2 * k + lane() / 8 % 2));
#pragma unroll
      for (int m = 0; m < mt; ++m) {
        multiply_tiles(c[m][n], fa[m], fb[0], fb[1]);
        multiply_tiles(c[m][n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

/// c[16 mt, D] += p[16 mt, 8 nt] times rows [0, 8 nt) of b; p rounded to bf16. An accumulator's fragments are, two by
/// two, those of a left operand.
template <int D, int mt, int nt>
__device__ void add_products(Fragments<mt, D / 8>& c, const Fragments<mt, nt>& p, const uint4* b) {
#pragma unroll
  for (int k = 0; k < nt / 2; ++k) {
    std::uint32_t fa[mt][4];
#pragma unroll
    for (int m = 0; m < mt; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        fa[m][i] = narrow_pair(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      std::uint32_t fb[4];
      load_matrices_transposed(fb, Tile<D>::chunk(b, 16 * k + lane() % 16, n + lane() / 16));
#pragma unroll
      for (int m = 0; m < mt; ++m) {
        multiply_tiles(c[m][n], fa[m], fb[0], fb[1]);
        multiply_tiles(c[m][n + 1], fa[m], fb[2], fb[3]);
      }
    }
  }
}

/// Row of a fragment that a lane holds as its half-th, and column of its i-th element.
__device__ inline int fragment_row(int m, int half) { return 16 * m + 8 * half + lane() / 4; }
__device__ inline int fragment_column(int n, int i) { return 8 * n + 2 * (lane() % 4) + i; }

/// Rows [begin, begin + 16 mt) of a head become c times each row's factor, up to `end` and `dim`.
template <int D, int mt>
__device__ void store_rows(const Fragments<mt, D / 8>& c, const float (&factor)[mt][2], bf16* head, std::int64_t stride,
                           int begin, int end, int dim, bool aligned) {
#pragma unroll
  for (int m = 0; m < mt; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = begin + fragment_row(m, half);
      if (row >= end) continue;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int column = fragment_column(n, 0), left = dim - column;
        if (left <= 0) continue;
        const float pair[2] = {c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]};
        Pack<bf16, 2>::of(pair).store(head + row * stride + column, {left < 2 ? left : 2, aligned && left >= 2});
      }
    }
}

}  // namespace sluice::kernels::cuda
