#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_blocked.h"
#include "kernels/cpu/gemm_native.h"
#include "sluice/status.h"

namespace sluice::kernels {
namespace {

/// Fewer rows do not repay packing the other operand for the tiles.
constexpr std::int64_t least_amx_rows = 32;

bool runs_on_amx(std::int64_t m, Dtype operands) {
  return operands == Dtype::bf16 && m >= least_amx_rows && amx::available();
}

}  // namespace

void gemm(ConstMatrix a, ConstMatrix b, Matrix c, std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate,
          std::span<std::byte> workspace) {
  if (m <= 0 || n <= 0) return;
  SLUICE_CHECK(k > 0 && a.dtype == b.dtype && (!accumulate || c.dtype == Dtype::f32),
               "k %lld, operands %s and %s, result %s", static_cast<long long>(k), dtype_name(a.dtype),
               dtype_name(b.dtype), dtype_name(c.dtype));
  const std::uint64_t least_bytes = blocked_gemm_workspace_bytes(m, n, k, c.dtype);
  SLUICE_CHECK(workspace.size() >= least_bytes, "workspace of %zu bytes, %zu needed", workspace.size(),
               static_cast<std::size_t>(least_bytes));
  // Cut to what was asked for: which path runs must not depend on a workspace that is larger.
  const std::span<std::byte> used =
      workspace.first(std::min<std::uint64_t>(workspace.size(), gemm_workspace_bytes(m, n, k, a.dtype, c.dtype)));
  if (runs_on_amx(m, a.dtype) && used.size() >= amx_gemm_workspace_bytes(m, n, k, c.dtype))
    return amx_gemm(a, b, c, m, n, k, accumulate, used);
  if (a.dtype == Dtype::bf16 && gemm_bf16_is_native() && native_gemm(a, b, c, m, n, k, accumulate, used)) return;
  blocked_gemm(a, b, c, m, n, k, accumulate, used);
}

std::uint64_t gemm_workspace_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const std::uint64_t blocked_bytes = blocked_gemm_workspace_bytes(m, n, k, result);
  if (runs_on_amx(m, operands)) return std::max(blocked_bytes, amx_gemm_workspace_bytes(m, n, k, result));
  if (operands != Dtype::bf16 || !gemm_bf16_is_native()) return blocked_bytes;
  // Where oneDNN asks for far more than that, fp32 in panels is the better use of the budget.
  const std::uint64_t native_bytes = native_scratchpad_bytes(m, n, k, result);
  return native_bytes <= 4 * blocked_bytes ? std::max(blocked_bytes, native_bytes) : blocked_bytes;
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
