#include <fmt/format.h>

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"

namespace sluice {

Result<HardwareProfile> measure_profile(const MeasureOptions& options) {
  const auto say = [&options](const char* what) {
    if (options.progress) options.progress(what);
  };
  HardwareProfile p;
  p.machine = machine_id();
  p.cores = usable_cores();
  p.compute_threads = options.compute_threads > 0 ? options.compute_threads : p.cores;
  p.optimizer_threads = options.optimizer_threads > 0 ? options.optimizer_threads : std::max(1, p.cores / 2);
  kernels::set_compute_threads(p.compute_threads);

  say("matrix multiply, fp32");
  p.gemm_flops_f32 = measure_gemm_flops(usual_gemm_shapes(), Dtype::f32, 3);
  say("matrix multiply, bf16");
  p.gemm_flops_bf16 = measure_gemm_flops(usual_gemm_shapes(), Dtype::bf16, 3);
  say("peak arithmetic");
  p.peak_flops_f32 = measure_peak_flops_f32(p.compute_threads, 0.5);
  p.peak_flops_bf16 = measure_peak_flops_bf16(p.compute_threads, 0.5);
  say("copies");
  // A copy lane is one thread, and the CPU device copies alike in both directions.
  p.h2d_bytes_per_second = p.d2h_bytes_per_second = measure_copy_bytes_per_second(1, 1);
  say("memory");
  p.memory_bytes_per_second = measure_stream_bytes_per_second(p.cores, 1);
  say("optimizer");
  p.adamw_parameters_per_second = measure_adamw_parameters_per_second(Dtype::bf16, p.optimizer_threads, 1);
  p.norm_bytes_per_second = measure_norm_bytes_per_second(p.optimizer_threads, 0.5);
  p.checksum_bytes_per_second = measure_checksum_bytes_per_second(0.5);
  say("executor");
  SLUICE_ASSIGN(p.op_overhead_seconds, measure_op_overhead_seconds(0.5));
  SLUICE_ASSIGN(p.handoff_seconds, measure_handoff_seconds(p.compute_threads, 1));
  return p;
}

}  // namespace sluice
