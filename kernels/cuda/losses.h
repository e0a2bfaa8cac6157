// Sum of the losses of a chunk of tokens, on device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// *sum = (first ? 0 : *sum) + losses[0] + ..., in double precision and in an order that follows from `rows` alone.
/// losses: [rows], nats; sum: one double on the device.
void add_losses(const float* losses, std::int64_t rows, bool first, double* sum, Stream& stream);

}  // namespace sluice::kernels::cuda
