// Matrix multiply through oneDNN's matmul primitives (internal to gemm): for CPUs that multiply bf16 in hardware.
#pragma once

#include "kernels/cpu/gemm.h"

namespace sluice::kernels {

/// False, with nothing done, if oneDNN has no optimised primitive for this problem or its scratchpad exceeds the
/// workspace. A primitive is made when a problem is first met on this calling thread; later calls only look it up.
bool native_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
                 std::int64_t k, bool accumulate, std::span<std::byte> workspace);

/// Largest scratchpad that oneDNN asks for, on all cores, in the layouts of a linear layer's matmuls of this shape: y = x
/// W^T and dx = dy W, and with an fp32 result dW += dy^T x. 0 where it has no optimised primitive.
std::uint64_t native_scratchpad_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result);

/// True if oneDNN has an optimised bf16 matmul for this CPU (AVX512_BF16 or AMX).
bool native_bf16_available();

}  // namespace sluice::kernels
