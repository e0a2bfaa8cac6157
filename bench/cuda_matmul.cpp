// Matrix multiply on the device: the algorithm that is used without timing, against the best of all that cuBLASLt's
// heuristics name.
//
//     bench_cuda_matmul [--smoke] [--json FILE] [--rounds N] [part of a name]
//
// Each linear layer y = x W^T of the presets appears in the three layouts that training needs (bench/matmul.cpp):
// forward NT, input NN, weight TN with an fp32 result that is added to. bf16 operands; one layer also in fp32. Every
// algorithm is timed once to find the best, then best and first in rounds; medians. Status 2 where there is no device.
#include "bench/cuda_bench.h"
#include "kernels/cuda/gemm.h"

namespace sluice {
namespace {

using namespace bench;
using kernels::cuda::Gemm;
using kernels::cuda::GemmCall;
using kernels::cuda::GemmChoice;

struct Shape {
  const char* name;
  std::int64_t m, n, k;
  Dtype dtype = Dtype::bf16;
};
constexpr Shape smoke_shapes[] = {{"smoke", 128, 72, 40}};
constexpr Shape full_shapes[] = {
    {"square", 8192, 8192, 8192},       {"125m attention", 8192, 768, 768},
    {"1b attention", 8192, 2048, 2048}, {"1b mlp", 8192, 5632, 2048},
    {"1b mlp down", 8192, 2048, 5632},  {"1b head", 2048, 32000, 2048},
    {"7b attention", 4096, 4096, 4096}, {"7b mlp", 4096, 11008, 4096},
    {"7b mlp down", 4096, 4096, 11008}, {"7b head", 2048, 32000, 4096},
    {"70b mlp", 4096, 28672, 8192},     {"7b attention f32", 2048, 4096, 4096, Dtype::f32}};
constexpr const char* layouts[] = {"forward NT", "input NN", "weight TN"};

struct Operands {
  void *x, *w, *y;
  float* d_w;
};

GemmCall call_of(const Shape& s, int layout, const Operands& o) {
  if (layout == 0)
    return {{o.x, s.dtype, s.k, false}, {o.w, s.dtype, s.k, true}, {o.y, s.dtype, s.n}, s.m, s.n, s.k, false};
  if (layout == 1)
    return {{o.y, s.dtype, s.n, false}, {o.w, s.dtype, s.k, false}, {o.x, s.dtype, s.k}, s.m, s.k, s.n, false};
  return {{o.y, s.dtype, s.n, true}, {o.x, s.dtype, s.k, false}, {o.d_w, Dtype::f32, s.k}, s.n, s.k, s.m, true};
}

template <class T>
T value_of(Result<T> result) {
  if (result) return std::move(*result);
  check(Status(result.error()));
  std::abort();
}

struct Row {
  GemmCall call;
  const char *name, *layout;
  std::size_t algorithms;
  double seconds, best_seconds, ratio;
  double flop() const {
    return 2 * static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(call.k);
  }
};

Row measure(const Shape& s, int layout, const Operands& o, std::span<std::byte> workspace, const CudaOptions& options,
            Stream& stream) {
  const GemmCall call = call_of(s, layout, o);
  const auto first = value_of(Gemm::create({})), best = value_of(Gemm::create({}));
  const std::vector<GemmChoice> timed = value_of(first->time(call, workspace, stream, 64, options.smoke ? 1 : 3));
  check(best->adopt(timed[0]));
  const auto run = [&](Gemm& gemm) { return [&] { check(gemm.multiply(call, workspace, stream)); }; };
  const auto seconds = rounds(stream, options.rounds, options.smoke ? 1 : 4, {run(*first), run(*best)});
  return {call,
          s.name,
          layouts[layout],
          timed.size(),
          median(seconds[0]),
          median(seconds[1]),
          median_ratio(seconds[1], seconds[0])};
}

int run(int argc, char** argv) {
  const CudaOptions options = cuda_options("bench_cuda_matmul", argc, argv);
  Stream stream(nullptr);
  std::vector<std::string> json;
  std::printf("%-17s %6s %6s %6s  %-11s %5s %10s %9s %9s %7s\n", "layer", "m", "n", "k", "layout", "tried", "us",
              "TFLOP/s", "best", "ratio");
  for (const Shape& s : options.smoke ? std::span<const Shape>(smoke_shapes) : full_shapes) {
    if (std::string(s.name).find(options.filter) == std::string::npos) continue;
    Arrays arrays;
    const Operands o{arrays.make(s.m * s.k, s.dtype), arrays.make(s.n * s.k, s.dtype), arrays.make(s.m * s.n, s.dtype),
                     arrays.make<float>(s.n * s.k)};
    const std::uint64_t bytes = kernels::cuda::gemm_workspace_bytes(s.m, s.n, s.k, s.dtype, s.dtype);
    const std::span<std::byte> workspace(
        reinterpret_cast<std::byte*>(arrays.make<float>(static_cast<std::int64_t>(bytes / 4))), bytes);
    for (const int layout : {0, 1, 2}) {
      const Row r = measure(s, layout, o, workspace, options, stream);
      std::printf("%-17s %6lld %6lld %6lld  %-11s %5zu %10.1f %9.1f %9.1f %7.3f\n", r.name,
                  static_cast<long long>(r.call.m), static_cast<long long>(r.call.n), static_cast<long long>(r.call.k),
                  r.layout, r.algorithms, r.seconds * 1e6, r.flop() / r.seconds / 1e12,
                  r.flop() / r.best_seconds / 1e12, r.ratio);
      json.push_back(
          text("\"layer\": \"%s\", \"layout\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, "
               "\"dtype\": \"%s\", \"algorithms\": %zu, \"seconds\": %.9g, \"flops\": %.6g, "
               "\"best_flops\": %.6g, \"ratio\": %.4f",
               r.name, r.layout, static_cast<long long>(r.call.m), static_cast<long long>(r.call.n),
               static_cast<long long>(r.call.k), dtype_name(s.dtype), r.algorithms, r.seconds, r.flop() / r.seconds,
               r.flop() / r.best_seconds, r.ratio));
    }
  }
  write_json(options, json);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
