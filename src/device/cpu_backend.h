// The CPU as the device: compute ops of a plan become calls of the model's sublayers.
#pragma once

#include <cstdint>

#include "src/device/bind_sublayer.h"

namespace sluice {

/// One per rank. All arguments must outlive it.
class CpuBackend final : public ComputeBackend {
 public:
  CpuBackend(const ModelSpec& model, const RopeView& rope, const SublayerOptions& options)
      : model_(model), rope_(rope), options_(options) {}

  void thread_started() override;
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override;

 private:
  const ModelSpec& model_;
  RopeView rope_;
  SublayerOptions options_;
};

}  // namespace sluice
