// Sums over the rows of a matrix in two stages and a fixed order: rows of a block one after the other, then blocks.
#pragma once

#include "kernels/cuda/pack.cuh"

namespace sluice::kernels::cuda {

/// Rows that one block sums up: enough blocks for a large device, few enough that their sums are little to read again.
/// A function of the shape alone, since it is part of the order. Grids have up to 65535 blocks of rows.
inline std::int64_t rows_per_block(std::int64_t rows) {
  return std::max(std::clamp<std::int64_t>(divide_up(rows, 512), 4, 64), divide_up(rows, 32768));
}
inline std::int64_t row_blocks(std::int64_t rows) { return divide_up(rows, rows_per_block(rows)); }

constexpr unsigned column_lanes = 32, column_rows = 8;

/// sums[block, c] = sum of x[r, c] over the rows of a block. Blocks of column_lanes x column_rows threads; a thread has
/// a pack of columns and every column_rows-th row. The grid's y are the blocks of rows.
template <class T>
__global__ void __launch_bounds__(column_lanes* column_rows)
    column_sums_kernel(const T* x, std::int64_t ld, std::int64_t rows, std::int64_t per_block, std::int64_t width,
                       float* sums, bool aligned) {
  constexpr int n = pack_numel<T>;
  __shared__ float part_sum[column_rows][column_lanes * n];
  const std::int64_t begin = blockIdx.y * per_block;
  const std::int64_t end = rows < begin + per_block ? rows : begin + per_block;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * column_lanes * n,
                     c = first_column + std::int64_t{threadIdx.x} * n;
  float sum[n] = {};
  if (c < width) {
    const Part part = part_of<n>(c, width, aligned);
#pragma unroll 4
    for (std::int64_t r = begin + threadIdx.y; r < end; r += column_rows) {
      const Pack<T, n> v = Pack<T, n>::load(x + r * ld + c, part);
#pragma unroll
      for (int j = 0; j < n; ++j) sum[j] += v[j];
    }
  }
#pragma unroll
  for (int j = 0; j < n; ++j) part_sum[threadIdx.y][threadIdx.x * n + j] = sum[j];
  __syncthreads();
  const unsigned k = threadIdx.y * column_lanes + threadIdx.x;
  if (k >= column_lanes * n || first_column + k >= width) return;
  float total = 0;
#pragma unroll
  for (unsigned i = 0; i < column_rows; ++i) total += part_sum[i][k];
  sums[blockIdx.y * width + first_column + k] = total;
}

/// sum[c] += blocks[i * stride + c] over i = 0 .. count - 1: groups of neighbouring blocks in order, then the groups.
void add_row_blocks(const char* name, const float* blocks, std::int64_t count, std::int64_t stride, std::int64_t width,
                    float* sum, Stream& stream);

}  // namespace sluice::kernels::cuda
