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
    // Where rows are misaligned, as GPT-2's 50257 are, no multiply can use the quick ways into and out of memory.
    .logits_multiple = 64,
    // Each chunk reads and writes gradients of 4 bytes: at 2,048 tokens, by arithmetic, a third of an H200's multiply.
    .chunk_tokens_max = 8192,
    .apart = true,
};

namespace {

constexpr int algorithms_timed = 8;

Status adopt(kernels::cuda::Gemm& gemm, const KernelChoices& choices) {
  for (const auto& [problem, algorithm] : choices) {
    if (!kernels::cuda::GemmChoice::is_named_by(problem)) continue;
    SLUICE_ASSIGN(const kernels::cuda::GemmChoice choice, kernels::cuda::GemmChoice::from_words(problem, algorithm));
    SLUICE_TRY(gemm.adopt(choice));
  }
  return success();
}

Error chosen_elsewhere(const Error& why) {
  return bad_request(why.message +
                     "; measure the device anew with 'sluice bench device'; a run goes on with what is chosen then by "
                     "--kernels-anew, and its bits may differ");
}

}  // namespace

Result<CudaLibraries> CudaLibraries::open(const KernelChoices& choices, bool timed) {
  CudaLibraries all;
  kernels::cuda::Gemm::Options options;
  options.timed = timed ? algorithms_timed : 0;
  SLUICE_ASSIGN(all.gemm, kernels::cuda::Gemm::create(options));
  if (const Status adopted = adopt(*all.gemm, choices); !adopted.ok()) return chosen_elsewhere(adopted.error());
  // It takes memory and time: only where it has or may have something to do.
  const bool wanted =
      timed || std::ranges::any_of(choices, [](const auto& c) { return CudaAttention::is_cudnn(c.second); });
  std::unique_ptr<kernels::cuda::CudnnAttention> cudnn;
  if (wanted)
    if (auto opened = kernels::cuda::CudnnAttention::create(); opened.ok()) cudnn = *std::move(opened);
  auto attention = CudaAttention::create(std::move(cudnn), choices, timed);
  if (!attention.ok()) return chosen_elsewhere(attention.error());
  all.attention = *std::move(attention);
  return all;
}

KernelChoices CudaLibraries::used() {
  KernelChoices choices = attention->used();
  for (const kernels::cuda::GemmChoice& choice : gemm->used()) choices.insert(choice.to_words());
  return choices;
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
