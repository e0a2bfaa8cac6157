#include "src/model/cpu_kernels.h"
#include "src/model/sublayers-inl.h"

namespace sluice {

const KernelSizes cpu_kernel_sizes{
    .gemm_bytes = kernels::gemm_workspace_bytes,
    .attention_bytes = kernels::attention_workspace_bytes,
    .rows_bytes =
        [](std::int64_t rows, std::int64_t width) {
          return sizeof(float) * static_cast<std::uint64_t>(kernels::norm_workspace_floats(rows, width));
        },
    .logits_multiple = 1,
    .chunk_tokens_max = 2048,
    .apart = false,
};

void run_sublayer(OpKind op, const SublayerArgs& args) { run_sublayer(CpuKernels(), op, args); }

}  // namespace sluice
