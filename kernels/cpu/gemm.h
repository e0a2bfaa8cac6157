// Row-major matrix multiply with fp32 accumulation, in all threads of the calling thread's OpenMP team.
//
// bf16 operands run on the CPU's bf16 units where it has them: AMX tiles, or AVX512_BF16 through oneDNN; elsewhere panels
// of them are widened to fp32 in the workspace and multiplied in fp32. For one machine, thread count and leading dimensions
// the result is a pure function of the operands' values and of the shape: not of addresses, nor of more workspace than
// was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/dtype.h"

namespace sluice::kernels {

/// A row-major matrix in memory, f32 or bf16. `ld` is the distance between rows in elements.
struct Matrix {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t ld = 0;
};
struct ConstMatrix {
  const void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::int64_t ld = 0;
  bool transposed = false;  ///< the operand is the transpose of what lies in memory
};

/// C[m,n] = A[m,k] * B[k,n], or C += with `accumulate` (C f32 only). A and B have the same dtype; C may be f32 or bf16.
/// Aligned to 64 bytes: workspace, of gemm_workspace_bytes(m, n, k, dtypes) or that of a larger problem.
void gemm(ConstMatrix a, ConstMatrix b, Matrix c, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate,
          std::span<std::byte> workspace);

/// Workspace for one gemm of these sizes; with less, down to that of the largest smaller problem, bf16 may run in fp32.
/// Grows slowly (panels), never with m*n*k. Where bf16 is native it depends on the number of cores.
std::uint64_t gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result);

/// True if this CPU multiplies bf16 natively (else bf16 gemms run in fp32).
bool gemm_bf16_is_native();

/// Threads that compute kernels use when called from this thread; sets the OpenMP team of the calling thread.
void set_compute_threads(int threads);

}  // namespace sluice::kernels
