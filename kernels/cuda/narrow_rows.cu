#include "kernels/cuda/map.cuh"
#include "kernels/cuda/narrow_rows.h"

namespace sluice::kernels::cuda {
namespace {

struct NarrowRows {
  static constexpr int n = 4;
  const float* from;
  bf16* to;
  std::int64_t from_ld, to_ld;
  __device__ Pack<float, n> load(std::int64_t r, std::int64_t c, Part part) const {
    return Pack<float, n>::load(from + r * from_ld + c, part);
  }
  __device__ void finish(std::int64_t r, std::int64_t c, Part part, const Pack<float, n>& in) const {
    float v[n];
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = in[j];
    Pack<bf16, n>::of(v).store(to + r * to_ld + c, part);
  }
};

}  // namespace

void narrow_rows(const float* from, std::int64_t from_ld, bf16* to, std::int64_t to_ld, std::int64_t rows,
                 std::int64_t width, Stream& stream) {
  constexpr int n = NarrowRows::n;
  map(stream, "narrow_rows", NarrowRows{from, to, from_ld, to_ld}, rows, width,
      packs_aligned<n>(from, from_ld) && packs_aligned<n>(to, to_ld));
}

}  // namespace sluice::kernels::cuda
