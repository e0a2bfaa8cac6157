// Ops of sublayers measured on the CPU.
#pragma once

#include <memory>

#include "src/device/device_bench.h"

namespace sluice {

class CpuBench final : public DeviceBench {
 public:
  /// Sets the calling thread's OpenMP team.
  static Result<std::unique_ptr<DeviceBench>> create(int threads);
  Status run(OpKind op, const SublayerArgs& args) override;
  Result<double> op_seconds(OpKind op, const SublayerArgs& args) override;

  // The host's own rates are in profile_measure.h.
  Result<double> copy_seconds(Way, std::uint64_t, int) override { return not_apart(); }
  Result<double> mark_seconds() override { return not_apart(); }
  Result<double> gemm_seconds(const GemmShape&, Dtype, Dtype) override { return not_apart(); }
  Result<double> attention_seconds(const Attention&, bool) override { return not_apart(); }
  Result<double> adamw_seconds(std::int64_t) override { return not_apart(); }

 private:
  CpuBench() = default;
  static Error not_apart() { return bad_request("the CPU is not apart from the host; 'sluice bench all' measures it"); }
  double timed_run(OpKind op, const SublayerArgs& args);
  void touch(const std::byte* data, std::uint64_t bytes);

  Pages eviction_;  ///< read between runs, so that parameters are no nearer than they are in a step
  volatile std::uint64_t sink_ = 0;
};

}  // namespace sluice
