// Rows of fp32 to bf16 (internal to gemm).
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"

namespace sluice::kernels::cuda {

/// to[r, :] = from[r, :], nearest even, rows of width, strides in elements
void narrow_rows(const float* from, std::int64_t from_ld, bf16* to, std::int64_t to_ld, std::int64_t rows,
                 std::int64_t width, Stream& stream);

}  // namespace sluice::kernels::cuda
