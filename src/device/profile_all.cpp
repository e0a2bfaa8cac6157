#include <algorithm>
#include <iterator>

#include "kernels/cpu/gemm.h"
#include "src/device/profile.h"
#include "src/device/profile_measure.h"
#include "src/device/profile_rates.h"

namespace sluice {
namespace {

using Better = QuietMeasurer::Better;

struct MeasuredRate {
  const char* name;
  const char* what;  ///< for people
  double HardwareProfile::*field;
  Better better;
  Result<double> (*measure)(const HardwareProfile&);
};

const MeasuredRate rates_to_measure[] = {
    {"gemm_flops_f32", "matrix multiply, fp32", &HardwareProfile::gemm_flops_f32, Better::more,
     [](const HardwareProfile&) -> Result<double> { return measure_gemm_flops(usual_gemm_shapes(), Dtype::f32, 3); }},
    {"gemm_flops_bf16", "matrix multiply, bf16", &HardwareProfile::gemm_flops_bf16, Better::more,
     [](const HardwareProfile&) -> Result<double> { return measure_gemm_flops(usual_gemm_shapes(), Dtype::bf16, 3); }},
    {"peak_flops_f32", "peak arithmetic", &HardwareProfile::peak_flops_f32, Better::more,
     [](const HardwareProfile& p) -> Result<double> { return measure_peak_flops_f32(p.compute_threads, 0.5); }},
    {"peak_flops_bf16", "peak arithmetic", &HardwareProfile::peak_flops_bf16, Better::more,
     [](const HardwareProfile& p) -> Result<double> { return measure_peak_flops_bf16(p.compute_threads, 0.5); }},
    // A copy lane is one thread, and the CPU device copies alike in both directions.
    {"h2d_bytes_per_second", "copies", &HardwareProfile::h2d_bytes_per_second, Better::more,
     [](const HardwareProfile&) -> Result<double> { return measure_copy_bytes_per_second(1, 1); }},
    {"memory_bytes_per_second", "memory", &HardwareProfile::memory_bytes_per_second, Better::more,
     [](const HardwareProfile& p) -> Result<double> { return measure_stream_bytes_per_second(p.cores, 1); }},
    {"adamw_parameters_per_second", "optimizer", &HardwareProfile::adamw_parameters_per_second, Better::more,
     [](const HardwareProfile& p) -> Result<double> {
       return measure_adamw_parameters_per_second(Dtype::bf16, p.optimizer_threads, 1);
     }},
    {"norm_bytes_per_second", "optimizer", &HardwareProfile::norm_bytes_per_second, Better::more,
     [](const HardwareProfile& p) -> Result<double> {
       return measure_norm_bytes_per_second(p.optimizer_threads, 0.5);
     }},
    {"checksum_bytes_per_second", "optimizer", &HardwareProfile::checksum_bytes_per_second, Better::more,
     [](const HardwareProfile&) -> Result<double> { return measure_checksum_bytes_per_second(0.5); }},
    {"op_overhead_seconds", "executor", &HardwareProfile::op_overhead_seconds, Better::less,
     [](const HardwareProfile&) -> Result<double> { return measure_op_overhead_seconds(0.5); }},
    {"handoff_seconds", "executor", &HardwareProfile::handoff_seconds, Better::less,
     [](const HardwareProfile& p) -> Result<double> { return measure_handoff_seconds(p.compute_threads, 1); }},
};

}  // namespace

const std::vector<std::string>& rate_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    std::transform(std::begin(rates_to_measure), std::end(rates_to_measure), std::back_inserter(list),
                   [](const MeasuredRate& r) { return r.name; });
    return list;
  }();
  return names;
}

Status measure_rates(HardwareProfile& p, const std::function<bool(const std::string&)>& chosen, Doubts& doubts,
                     CpuClock* clock, const std::function<void(const std::string&)>& progress) {
  kernels::set_compute_threads(p.compute_threads);
  QuietMeasurer quiet(clock);
  std::string said;
  for (const MeasuredRate& rate : rates_to_measure) {
    if (!chosen(rate.name)) continue;
    if (progress && said != rate.what) progress(rate.what);
    said = rate.what;
    SLUICE_ASSIGN(const QuietMeasurer::Measured m, quiet.measure(rate.better, [&] { return rate.measure(p); }));
    p.*rate.field = m.value;
    if (rate.field == &HardwareProfile::h2d_bytes_per_second) p.d2h_bytes_per_second = m.value;
    doubts.measured(rate.name, m.disturbance);
  }
  return success();
}

Result<HardwareProfile> measure_profile(const MeasureOptions& options, Doubts& doubts) {
  HardwareProfile p;
  p.machine = machine_id();
  p.cores = usable_cores();
  p.compute_threads = options.compute_threads > 0 ? options.compute_threads : p.cores;
  p.optimizer_threads = options.optimizer_threads > 0 ? options.optimizer_threads : std::max(1, p.cores / 2);
  SLUICE_TRY(measure_rates(
      p, [](const std::string&) { return true; }, doubts, nullptr, options.progress));
  return p;
}

Result<HardwareProfile> measure_profile(const MeasureOptions& options) {
  Doubts doubts;
  SLUICE_ASSIGN(HardwareProfile p, measure_profile(options, doubts));
  if (const std::string text = doubts.describe(rate_names()); !text.empty() && options.progress)
    options.progress("the machine was not quiet: " + text);
  return p;
}

}  // namespace sluice
