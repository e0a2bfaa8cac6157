#include "kernels/cpu/gemm.h"

#include <omp.h>

#include "kernels/cpu/gemm_blocked.h"
#include "kernels/cpu/gemm_native.h"
#include "sluice/status.h"

namespace sluice::kernels {

void gemm(ConstMatrix a, ConstMatrix b, Matrix c, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate,
          std::span<std::byte> workspace) {
  if (m <= 0 || n <= 0) return;
  SLUICE_CHECK(k > 0 && a.dtype == b.dtype && (!accumulate || c.dtype == Dtype::f32),
               "k %lld, operands %s and %s, result %s", static_cast<long long>(k), dtype_name(a.dtype),
               dtype_name(b.dtype), dtype_name(c.dtype));
  const std::uint64_t needed_bytes = gemm_workspace_bytes(m, n, k, a.dtype, c.dtype);
  SLUICE_CHECK(workspace.size() >= needed_bytes, "workspace of %zu bytes, %zu needed", workspace.size(),
               static_cast<std::size_t>(needed_bytes));
  // Cut to the minimum: which path runs must not depend on a workspace that is larger.
  const std::span<std::byte> used = workspace.first(needed_bytes);
  if (a.dtype == Dtype::bf16 && gemm_bf16_is_native() && native_gemm(a, b, c, m, n, k, accumulate, used)) return;
  blocked_gemm(a, b, c, m, n, k, accumulate, used);
}

std::uint64_t gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype, Dtype result) {
  return m > 0 && n > 0 && k > 0 ? blocked_gemm_workspace_bytes(m, n, k, result) : 0;
}

bool gemm_bf16_is_native() {
  static const bool available = native_bf16_available();
  return available;
}

void set_compute_threads(int threads) {
  SLUICE_CHECK(threads > 0, "%d threads", threads);
  omp_set_num_threads(threads);
}

}  // namespace sluice::kernels
