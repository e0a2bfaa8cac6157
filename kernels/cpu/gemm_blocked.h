// Cache-blocked matrix multiply on packed fp32 panels (internal to gemm).
//
// Why not oneDNN's sgemm, which is about as fast: it allocates its packing buffers in every call, its bits depend on the
// thread count, and bf16 operands would have to be widened in a pass of their own. Packing widens them on the way.
#pragma once

#include "kernels/cpu/gemm.h"

namespace sluice::kernels {

/// Any of the dtypes that gemm accepts. A result element is summed over k in an order that depends on k alone, so the
/// bits do not depend on threads, addresses, m or n.
void blocked_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
                  std::int64_t k, bool accumulate, std::span<std::byte> workspace);

std::uint64_t blocked_gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result);

}  // namespace sluice::kernels
