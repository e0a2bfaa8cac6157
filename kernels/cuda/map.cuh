// Kernels that make each element of a matrix by itself.
#pragma once

#include "kernels/cuda/pack.cuh"

namespace sluice::kernels::cuda {

/// Threads of a block, over rows and columns.
constexpr unsigned map_threads = 256;

/// f.load(row, column, part) reads what a pack of F::n elements needs, f.finish(row, column, part, that) writes. A
/// thread reads two packs before it writes the first: more is on its way. So outputs may be inputs, element for
/// element.
template <class F>
__global__ void __launch_bounds__(map_threads) map_kernel(F f, std::int64_t rows, std::int64_t width, bool aligned) {
  constexpr int n = F::n;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * n;
  for (std::int64_t r = std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y; r < rows;
       r += std::int64_t{gridDim.y} * blockDim.y) {
    for (std::int64_t c = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * n; c < width; c += 2 * step) {
      const std::int64_t d = c + step;
      const Part first = part_of<n>(c, width, aligned);
      const auto x = f.load(r, c, first);
      if (d < width) {
        const Part second = part_of<n>(d, width, aligned);
        const auto y = f.load(r, d, second);
        f.finish(r, c, first, x);
        f.finish(r, d, second, y);
      } else {
        f.finish(r, c, first, x);
      }
    }
  }
}

/// Every element of [rows, width]; `aligned` as packs_aligned says for all of f's arrays.
template <class F>
void map(Stream& stream, const char* name, const F& f, std::int64_t rows, std::int64_t width, bool aligned) {
  if (rows <= 0 || width <= 0) return;
  const std::int64_t pairs = divide_up(divide_up(width, F::n), 2);
  unsigned x = 1;
  while (x < map_threads && x < pairs) x *= 2;
  const unsigned y = map_threads / x;
  const unsigned columns = some_blocks(stream, divide_up(pairs, x));
  const std::int64_t lines = std::min(divide_up(rows, y), std::max<std::int64_t>(1, most_blocks(stream) / columns));
  launch(stream, name, map_kernel<F>, dim3(columns, static_cast<unsigned>(std::min<std::int64_t>(lines, 65535))),
         dim3(x, y), f, rows, width, aligned);
}

}  // namespace sluice::kernels::cuda
