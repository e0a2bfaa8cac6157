#include "src/device/profile_device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace sluice {
namespace {

constexpr int passes = 5;

/// Quickest of several passes after one to warm up.
template <class F>
Result<double> quickest(F pass) {
  double best = 0;
  for (int i = 0; i <= passes; ++i) {
    SLUICE_ASSIGN(const double seconds, pass());
    if (i > 0) best = best == 0 ? seconds : std::min(best, seconds);
  }
  return std::max(best, 1e-9);
}

}  // namespace

DeviceSizes::DeviceSizes(std::uint64_t memory_bytes)
    : copy_bytes(std::clamp<std::uint64_t>(std::bit_floor(memory_bytes / 256), 1u << 16, 256u << 20)),
      // A multiply has two operands of 4 bytes and a result.
      gemm(static_cast<std::int64_t>(std::bit_floor(std::clamp<std::uint64_t>(
          static_cast<std::uint64_t>(std::sqrt(static_cast<double>(memory_bytes) / 768)), 64, 8192)))),
      adamw_numel(static_cast<std::int64_t>(copy_bytes / 8)) {}

Result<DeviceProfile> measure_device(DeviceBench& bench, const DeviceSizes& sizes) {
  using Way = DeviceBench::Way;
  DeviceProfile p;
  const auto rate = [&](Way way) -> Result<double> {
    SLUICE_ASSIGN(const double seconds, quickest([&] { return bench.copy_seconds(way, sizes.copy_bytes, 4); }));
    return static_cast<double>(sizes.copy_bytes) * (way == Way::both ? 2 : 1) / seconds;
  };
  SLUICE_ASSIGN(p.h2d_bytes_per_second, rate(Way::down));
  SLUICE_ASSIGN(p.d2h_bytes_per_second, rate(Way::up));
  SLUICE_ASSIGN(p.both_bytes_per_second, rate(Way::both));
  SLUICE_ASSIGN(p.memory_bytes_per_second, rate(Way::within));
  SLUICE_ASSIGN(p.op_overhead_seconds, quickest([&] { return bench.mark_seconds(); }));

  const std::int64_t n = sizes.gemm;
  const auto flops = [&](Dtype dtype, Dtype result) -> Result<double> {
    double best = 0;
    for (const GemmShape& shape :
         {GemmShape{n, n, n, false, true}, GemmShape{n, n, n, false, false}, GemmShape{n, n / 2, n, true, false}}) {
      SLUICE_ASSIGN(const double seconds, quickest([&] { return bench.gemm_seconds(shape, dtype, result); }));
      best = std::max(best, 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
                                static_cast<double>(shape.k) / seconds);
    }
    return best;
  };
  SLUICE_ASSIGN(p.gemm_flops_bf16, flops(Dtype::bf16, Dtype::bf16));
  SLUICE_ASSIGN(p.gemm_flops_f32, flops(Dtype::f32, Dtype::f32));
  SLUICE_ASSIGN(const double update, quickest([&] { return bench.adamw_seconds(sizes.adamw_numel); }));
  p.adamw_parameters_per_second = static_cast<double>(sizes.adamw_numel) / update;

  // Lanes that move data need a core now and then.
  p.optimizer_threads = std::max(1, usable_cores() - usable_cores() / 8);
  p.host_adamw_parameters_per_second = measure_adamw_parameters_per_second(Dtype::bf16, p.optimizer_threads, 1);
  p.host_norm_bytes_per_second = measure_norm_bytes_per_second(p.optimizer_threads, 0.5);
  SLUICE_ASSIGN(p.handoff_seconds, measure_handoff_seconds(0, 0.5));
  return p;
}

}  // namespace sluice
