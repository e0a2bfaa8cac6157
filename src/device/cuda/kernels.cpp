#include "src/device/cuda/kernels.h"

#include <algorithm>

#include "kernels/cuda/copy.h"
#include "kernels/cuda/losses.h"

namespace sluice {
namespace {

constexpr std::uintptr_t gemm_alignment = 256;

}  // namespace

const KernelSizes cuda_kernel_sizes{
    .gemm_bytes =
        [](std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result) {
          return kernels::cuda::gemm_workspace_bytes(m, n, k, operands, result) + gemm_alignment;
        },
    .attention_bytes = kernels::cuda::attention_workspace_bytes,
    .rows_bytes =
        [](std::int64_t rows, std::int64_t width) {
          return sizeof(float) *
                 static_cast<std::uint64_t>(std::max(kernels::cuda::norm_workspace_floats(rows, width),
                                                     kernels::cuda::bias_gradient_workspace_floats(rows, width)));
        },
    .apart = true,
};

Result<std::unique_ptr<kernels::cuda::Gemm>> make_gemm(const KernelChoices& choices, int timed) {
  kernels::cuda::Gemm::Options options;
  options.timed = timed;
  SLUICE_ASSIGN(auto gemm, kernels::cuda::Gemm::create(options));
  for (const auto& [problem, algorithm] : choices) {
    const auto choice = kernels::cuda::GemmChoice::from_words(problem, algorithm);
    const Status adopted = choice.ok() ? gemm->adopt(*choice) : Status(choice.error());
    if (!adopted.ok())
      return bad_request(adopted.error().message +
                         "; measure the device anew ('sluice bench device'), and where a run goes on, give --device "
                         "again: its kernels are then chosen anew, and bits may differ");
  }
  return gemm;
}

void CudaKernels::gemm(kernels::ConstMatrix a, kernels::ConstMatrix b, kernels::Matrix c, std::int64_t m,
                       std::int64_t n, std::int64_t k, bool accumulate, std::span<std::byte> workspace) const {
  if (!status().ok()) return;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  const std::size_t skipped = (gemm_alignment - address % gemm_alignment) % gemm_alignment;
  const kernels::cuda::GemmCall call{.a = a, .b = b, .c = c, .m = m, .n = n, .k = k, .accumulate = accumulate};
  failed_ = gemm_.multiply(call, workspace.subspan(std::min(skipped, workspace.size())), stream_);
}

void CudaKernels::copy(void* dst, const void* src, std::size_t bytes) const {
  kernels::cuda::copy(dst, src, bytes, stream_);
}

void CudaKernels::zero(void* dst, std::size_t bytes) const { kernels::cuda::zero(dst, bytes, stream_); }

void CudaKernels::copy_rows(const void* src, std::int64_t src_stride, void* dst, std::int64_t dst_stride,
                            std::int64_t row_bytes, std::int64_t rows) const {
  kernels::cuda::copy_rows(src, src_stride, dst, dst_stride, row_bytes, rows, stream_);
}

void CudaKernels::add_losses(const float* losses, std::int64_t rows, bool first, double* sum) const {
  kernels::cuda::add_losses(losses, rows, first, sum, stream_);
}

}  // namespace sluice
