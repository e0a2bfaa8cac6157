#include "kernels/cuda/adamw.h"
#include "kernels/cuda/adamw_math.cuh"
#include "kernels/cuda/map.cuh"

namespace sluice::kernels::cuda {
namespace {

struct Split {
  static constexpr int n = 4;
  const float* master;
  bf16* parameter;
  std::int16_t* remainder;
  __device__ Pack<float, n> load(std::int64_t, std::int64_t i, Part part) const {
    return Pack<float, n>::load(master + i, part);
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const Pack<float, n>& in) const {
    float w[n];
#pragma unroll
    for (int j = 0; j < n; ++j) w[j] = in[j];
    Masters<bf16, n>::store(w, parameter, remainder, i, part);
  }
};

struct Join {
  static constexpr int n = 4;
  const bf16* parameter;
  const std::int16_t* remainder;
  float* master;
  __device__ Masters<bf16, n> load(std::int64_t, std::int64_t i, Part part) const {
    Masters<bf16, n> in;
    in.load(parameter, remainder, i, part);
    return in;
  }
  __device__ void finish(std::int64_t, std::int64_t i, Part part, const Masters<bf16, n>& in) const {
    float w[n];
#pragma unroll
    for (int j = 0; j < n; ++j) w[j] = in[j];
    Pack<float, n>::of(w).store(master + i, part);
  }
};

}  // namespace

void split_master(const float* master, bf16* parameter, std::int16_t* remainder, std::int64_t numel, Stream& stream) {
  map(stream, "split_master", Split{master, parameter, remainder}, 1, numel,
      packs_aligned<4>(master) && packs_aligned<4>(parameter) && packs_aligned<4>(remainder));
}

void join_master(const bf16* parameter, const std::int16_t* remainder, float* master, std::int64_t numel,
                 Stream& stream) {
  map(stream, "join_master", Join{parameter, remainder, master}, 1, numel,
      packs_aligned<4>(master) && packs_aligned<4>(parameter) && packs_aligned<4>(remainder));
}

}  // namespace sluice::kernels::cuda
