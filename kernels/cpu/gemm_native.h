// Matrix multiply through oneDNN's matmul primitives (internal to gemm): for CPUs that multiply bf16 in hardware.
#pragma once

#include "kernels/cpu/gemm.h"

namespace sluice::kernels {

/// False, with nothing done, if oneDNN has no optimised primitive for this problem or its scratchpad exceeds the
/// workspace. A primitive is made when a problem is first met on this calling thread; later calls only look it up.
bool native_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
                 std::int64_t k, bool accumulate, std::span<std::byte> workspace);

/// True if oneDNN has an optimised bf16 matmul for this CPU (AVX512_BF16 or AMX).
bool native_bf16_available();

}  // namespace sluice::kernels
