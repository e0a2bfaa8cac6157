// Matrix multiply of bf16 on AMX tiles (internal to gemm).
//
// Why not oneDNN's: release 2.6, which Debian 12 carries, reaches a quarter of the tiles' rate in these layouts, and
// half of that for weight gradients.
#pragma once

#include "kernels/cpu/gemm.h"

namespace sluice::kernels {

/// A result element is summed over k in an order that depends on k alone. Needs amx::available().
void amx_gemm(const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::int64_t m, std::int64_t n,
              std::int64_t k, bool accumulate, std::span<std::byte> workspace);

std::uint64_t amx_gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype result);

}  // namespace sluice::kernels
