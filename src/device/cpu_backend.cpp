#include "src/device/cpu_backend.h"

#include <algorithm>

#include "kernels/cpu/gemm.h"

namespace sluice {

void CpuBackend::thread_started() { kernels::set_compute_threads(options_.threads); }

Status CpuBackend::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                       const StepParams& params) {
  SublayerArgs args = bind_sublayer(model_, options_, plan, op, operands, params);
  args.rope = rope_;
  std::ranges::fill(gradient_padding(args, op, operands), std::byte{0});
  run_sublayer(op.kind, args);
  return success();
}

}  // namespace sluice
