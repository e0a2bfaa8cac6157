// A CUDA GPU as the device of a rank: compute ops of a plan become work in its compute queue.
#pragma once

#include <cstdint>
#include <memory>

#include "offload/run/executor.h"
#include "src/device/bind_sublayer.h"
#include "src/device/cuda/device.h"
#include "src/device/cuda/kernels.h"
#include "src/model/sublayer.h"

namespace sluice {

/// One per rank. All arguments must outlive it.
class CudaBackend final : public ComputeBackend {
 public:
  /// Copies the rotary table to the device, beside the arenas. bad_request when there is no room for it, fault when a
  /// library is missing.
  static Result<std::unique_ptr<CudaBackend>> create(CudaDevice& device, const ModelSpec& model, const RopeTable& rope,
                                                     const SublayerOptions& options);
  ~CudaBackend() override;

  DeviceQueue* queue(LaneKind kind) override;
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override;
  Status update(const DeviceUpdate& update, const StepParams& params) override;
  /// Device memory that is not in a plan: the rotary table.
  std::uint64_t fixed_bytes() const { return rope_bytes_; }

 private:
  CudaBackend(CudaDevice& device, const ModelSpec& model, const SublayerOptions& options)
      : device_(device), model_(model), options_(options) {}
  Status load_rope(const RopeTable& rope);

  CudaDevice& device_;
  const ModelSpec& model_;
  SublayerOptions options_;
  RopeView rope_;
  std::byte* rope_memory_ = nullptr;
  std::uint64_t rope_bytes_ = 0;
  std::unique_ptr<CudaQueue> compute_, h2d_, d2h_;
  std::unique_ptr<kernels::cuda::Gemm> gemm_;
  std::unique_ptr<kernels::cuda::Stream> stream_;
  std::unique_ptr<CudaKernels> kernels_;
};

}  // namespace sluice
