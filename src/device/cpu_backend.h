// The CPU as the device: compute ops of a plan become calls of the model's sublayers.
#pragma once

#include <cstdint>

#include "offload/run/executor.h"
#include "src/model/sublayer.h"

namespace sluice {

/// One per rank. All arguments must outlive it.
class CpuBackend final : public ComputeBackend {
 public:
  struct Options {
    BatchShape shape;  ///< of a micro-batch; decode: at most shape.sequence tokens a call
    Dtype dtype = Dtype::f32;
    int threads = 1;
    std::int64_t kv_capacity = 0;
    bool documents = false;  ///< kept apart: their tokens come with positions
  };
  CpuBackend(const ModelSpec& model, const RopeTable& rope, const Options& options)
      : model_(model), rope_(rope), options_(options) {}

  void thread_started() override;
  Status run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) override;

 private:
  SublayerArgs bind(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                    const StepParams& params) const;

  const ModelSpec& model_;
  const RopeTable& rope_;
  Options options_;
};

}  // namespace sluice
