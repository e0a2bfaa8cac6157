#include "src/device/cpu_bench.h"

#include "kernels/cpu/gemm.h"

namespace sluice {
namespace {

constexpr std::uint64_t eviction_bytes = 64u << 20;

}  // namespace

Result<std::unique_ptr<DeviceBench>> CpuBench::create(int threads) {
  kernels::set_compute_threads(threads);
  SLUICE_ASSIGN(Pages eviction, Pages::make(eviction_bytes));
  return std::unique_ptr<DeviceBench>(new CpuBench(std::move(eviction)));
}

void CpuBench::touch(const std::byte* data, std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < bytes; i += 64) sum += static_cast<std::uint64_t>(data[i]);
  sink_ = sum;
}

Result<double> CpuBench::op_seconds(OpKind op, const SublayerArgs& args) {
  touch(eviction_.data(), eviction_.bytes());
  if (args.unit->kind != Sublayer::embed)
    touch(args.x_in,
          static_cast<std::uint64_t>(args.shape.tokens() * args.model->config.hidden) * dtype_bytes(args.dtype));
  const double start = now_seconds();
  run_sublayer(op, args);
  return now_seconds() - start;
}

}  // namespace sluice
