// Normally distributed random numbers in bulk, in all threads of the calling thread's OpenMP team.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::kernels {

/// out[i] = deviation * philox_normal(key, first + i, stream), with philox_normal's functions evaluated in fp32: a
/// fixed sequence of IEEE operations without fma, so that every SIMD target, team and way to cut a range gives the same
/// bits.
void fill_normal(std::uint64_t key, std::uint64_t stream, std::uint64_t first, float deviation, std::span<float> out);

}  // namespace sluice::kernels
