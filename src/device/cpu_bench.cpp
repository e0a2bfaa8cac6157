#include "src/device/cpu_bench.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm.h"

namespace sluice {
namespace {

/// No more than this, however large the model.
constexpr std::uint64_t eviction_bytes_max = 64u << 20;
/// Sublayers that a step runs before it comes back to one, of a small model.
constexpr std::uint64_t sublayers_between = 24;
constexpr double repeat_below_seconds = 0.2;  ///< quicker ops run more often
constexpr int repeats = 3;                    ///< each time; ops that last are measured several times (calibrate)
/// Of those that are quicker than caches are emptied: a step of such ops is short whatever they take.
constexpr double tiny_seconds = 1e-3;
constexpr int tiny_repeats = 3;

/// A boundary: the input or output of a sublayer, of all tokens.
std::uint64_t boundary_bytes(const SublayerArgs& args) {
  return static_cast<std::uint64_t>(args.shape.tokens() * args.model->config.hidden) * dtype_bytes(args.dtype);
}

/// What a step touches before it comes back to the sublayer: parameters, gradients and activations of so many like it.
/// Of nothing that is not in the op's cost key (calibrate.h).
std::uint64_t eviction_bytes(const SublayerArgs& args) {
  constexpr std::uint64_t saved_boundaries = 8;
  const std::uint64_t each =
      args.unit->numel * (dtype_bytes(args.dtype) + sizeof(float)) + saved_boundaries * boundary_bytes(args);
  return std::min(sublayers_between * each, eviction_bytes_max);
}

}  // namespace

Result<std::unique_ptr<DeviceBench>> CpuBench::create(int threads) {
  kernels::set_compute_threads(threads);
  return std::unique_ptr<DeviceBench>(new CpuBench);
}

void CpuBench::touch(const std::byte* data, std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < bytes; i += 64) sum += static_cast<std::uint64_t>(data[i]);
  sink_ = sum;
}

Status CpuBench::run(OpKind op, const SublayerArgs& args) {
  run_sublayer(op, args);
  return success();
}

Result<double> CpuBench::op_seconds(OpKind op, const SublayerArgs& args) {
  if (const std::uint64_t bytes = eviction_bytes(args); eviction_.bytes() < bytes) {
    SLUICE_ASSIGN(eviction_, Pages::make(bytes));
  }
  std::vector<double> seconds;
  double spent = 0;
  do {
    seconds.push_back(timed_run(op, args));
    spent += seconds.back();
  } while (static_cast<int>(seconds.size()) <= (seconds.back() < tiny_seconds ? tiny_repeats : repeats) &&
           spent < repeat_below_seconds * repeats);
  // The first run pays for threads and libraries that wake up; it counts only where it is the only one.
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  // The median: a step will meet the same clock and the same neighbours.
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// The input has just been written: where sublayers are cut a slice of the tokens, or what all ranks have gathered.
double CpuBench::timed_run(OpKind op, const SublayerArgs& args) {
  touch(eviction_.data(), eviction_bytes(args));
  const std::uint64_t whole = boundary_bytes(args);
  if (args.unit->kind != Sublayer::embed)
    touch(args.x_in, whole / static_cast<std::uint64_t>(args.model->config.split));
  if (args.normed != nullptr) touch(args.normed, whole);
  const double start = now_seconds();
  run_sublayer(op, args);
  return now_seconds() - start;
}

}  // namespace sluice
