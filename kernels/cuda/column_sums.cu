#include "kernels/cuda/column_sums.cuh"

namespace sluice::kernels::cuda {
namespace {

constexpr unsigned groups = 32;

__global__ void __launch_bounds__(column_lanes* groups)
    add_row_blocks_kernel(const float* blocks, std::int64_t count, std::int64_t stride, std::int64_t width,
                          float* sum) {
  __shared__ float part_sum[groups][column_lanes];
  const std::int64_t c = std::int64_t{blockIdx.x} * column_lanes + threadIdx.x;
  const std::int64_t per_group = divide_up(count, groups), begin = threadIdx.y * per_group;
  const std::int64_t end = count < begin + per_group ? count : begin + per_group;
  float part = 0;
  if (c < width)
#pragma unroll 8
    for (std::int64_t i = begin; i < end; ++i) part += blocks[i * stride + c];
  part_sum[threadIdx.y][threadIdx.x] = part;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
  float total = 0;
#pragma unroll
  for (unsigned g = 0; g < groups; ++g) total += part_sum[g][threadIdx.x];
  sum[c] += total;
}

}  // namespace

void add_row_blocks(const char* name, const float* blocks, std::int64_t count, std::int64_t stride, std::int64_t width,
                    float* sum, Stream& stream) {
  if (count <= 0 || width <= 0) return;
  launch(stream, name, add_row_blocks_kernel, dim3(static_cast<unsigned>(divide_up(width, column_lanes))),
         dim3(column_lanes, groups), blocks, count, stride, width, sum);
}

}  // namespace sluice::kernels::cuda
