// A CUDA GPU as the device of a rank: compute ops of a plan become work in its compute queue.
#pragma once

#include <cstdint>
#include <memory>

#include "offload/run/executor.h"
#include "src/device/bind_sublayer.h"
#include "src/device/cuda/device.h"
#include "src/device/cuda/kernels.h"
#include "src/device/cuda/ranges.h"
#include "src/model/sublayer.h"

namespace sluice {

/// One per rank. All arguments must outlive it.
class CudaBackend final : public ComputeBackend {
 public:
  /// fault when a library is missing.
  static Result<std::unique_ptr<CudaBackend>> create(CudaDevice& device, const ModelSpec& model, const RopeView& rope,
                                                     const SublayerOptions& options);

  DeviceQueue* queue(LaneKind kind) override;
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override;
  Status update(const DeviceUpdate& update, const StepParams& params) override;

 private:
  CudaBackend(const ModelSpec& model, const RopeView& rope, const SublayerOptions& options)
      : model_(model), rope_(rope), options_(options), ranges_(model) {}

  const ModelSpec& model_;
  RopeView rope_;
  SublayerOptions options_;
  OpRanges ranges_;
  std::unique_ptr<CudaQueue> compute_, h2d_, d2h_;
  CudaLibraries libraries_;
  std::unique_ptr<kernels::cuda::Stream> stream_;
  std::unique_ptr<CudaKernels> kernels_;
};

}  // namespace sluice
