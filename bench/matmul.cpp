// Matrix multiply against its bounds: the chip's fp32 peak, and the best rate of any layout of the same run.
//
//     bench_matmul [--smoke] [threads]
//
// Each linear layer y = x W^T of the presets appears in the three layouts that training needs:
//     forward   y[m,n]   = x[m,k]  W[n,k]^T
//     input     dx[m,k]  = dy[m,n] W[n,k]
//     weight    dW[n,k] += dy[m,n]^T x[m,k]     (fp32 result)
// in fp32 and bf16, repetitions interleaved, so that a disturbance hits all alike. Rates in GFLOP/s, best of the
// repetitions.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "offload/run/memory.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

using kernels::ConstMatrix;
using kernels::Matrix;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Shape {
  const char* name;
  std::int64_t m, n, k;
};
constexpr Shape smoke_shapes[] = {{"smoke", 100, 72, 40}};
constexpr Shape full_shapes[] = {
    {"25m qkv", 2048, 256, 256},         {"125m attention", 256, 768, 768},  {"125m mlp", 256, 2048, 768},
    {"125m mlp down", 256, 768, 2048},   {"125m attention", 512, 768, 768},  {"125m attention", 2048, 768, 768},
    {"125m mlp", 2048, 2048, 768},       {"125m mlp down", 2048, 768, 2048}, {"125m mlp", 8192, 2048, 768},
    {"1b attention", 2048, 2048, 2048},  {"1b mlp", 2048, 5632, 2048},       {"1b mlp down", 2048, 2048, 5632},
    {"1b head chunk", 512, 32000, 2048}, {"7b attention", 2048, 4096, 4096}, {"7b mlp", 1024, 11008, 4096},
    {"7b mlp down", 1024, 4096, 11008}};

enum class Layout { forward, input, weight };
constexpr const char* layout_names[] = {"forward NT", "input NN", "weight TN"};

/// Room for every operand of a shape in either dtype, in huge pages as a run's arenas are. Values are random: the units
/// run slower on them than on equal ones, which draw less power.
struct Operands {
  Pages x, w, y, x16, w16, y16, workspace;
  explicit Operands(const Shape& s) {
    const auto x_numel = s.m * s.k, w_numel = s.n * s.k, y_numel = std::max(s.m * s.n, s.n * s.k);
    x = random(x_numel, Dtype::f32), x16 = random(x_numel, Dtype::bf16);
    w = random(w_numel, Dtype::f32), w16 = random(w_numel, Dtype::bf16);
    y = random(y_numel, Dtype::f32), y16 = random(y_numel, Dtype::bf16);
    std::uint64_t bytes = 0;
    for (const auto& [m, n, k] : {std::array{s.m, s.n, s.k}, {s.m, s.k, s.n}, {s.n, s.k, s.m}})
      bytes = std::max(bytes, kernels::gemm_workspace_bytes(m, n, k, Dtype::bf16, Dtype::bf16));
    workspace = pages(bytes);
  }
  static Pages pages(std::uint64_t bytes) {
    Result<Pages> made = Pages::make(bytes);
    if (!made.ok()) {
      std::fprintf(stderr, "bench_matmul: %s\n", made.error().message.c_str());
      std::exit(1);
    }
    return std::move(*made);
  }
  static Pages random(std::int64_t numel, Dtype dtype) {
    Pages made = pages(static_cast<std::uint64_t>(numel) * dtype_bytes(dtype));
    fill_random(made, dtype, 1);
    return made;
  }
  std::span<std::byte> scratch() { return {workspace.data(), workspace.bytes()}; }
};

void multiply(const Shape& s, Layout layout, Dtype dtype, Operands& o) {
  const bool f32 = dtype == Dtype::f32;
  void* x = f32 ? o.x.data() : o.x16.data();
  void* w = f32 ? o.w.data() : o.w16.data();
  void* y = f32 ? o.y.data() : o.y16.data();
  if (layout == Layout::forward)
    kernels::gemm({x, dtype, s.k, false}, {w, dtype, s.k, true}, {y, dtype, s.n}, s.m, s.n, s.k, false, o.scratch());
  else if (layout == Layout::input)
    kernels::gemm({y, dtype, s.n, false}, {w, dtype, s.k, false}, {x, dtype, s.k}, s.m, s.k, s.n, false, o.scratch());
  else
    kernels::gemm({y, dtype, s.n, true}, {x, dtype, s.k, false}, {o.w.data(), Dtype::f32, s.k}, s.n, s.k, s.m, true,
                  o.scratch());
}

struct Row {
  Shape shape;
  Layout layout;
  double rate[2];  ///< f32, bf16
};

std::vector<Row> measure(const Shape& s, int repetitions) {
  Operands o(s);
  std::vector<Row> rows;
  for (const Layout layout : {Layout::forward, Layout::input, Layout::weight}) {
    Row row{s, layout, {0, 0}};
    for (int r = 0; r < repetitions; ++r)
      for (const int t : {0, 1}) {
        const auto start = std::chrono::steady_clock::now();
        multiply(s, layout, t == 0 ? Dtype::f32 : Dtype::bf16, o);
        const double flop = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
        row.rate[t] = std::max(row.rate[t], flop / seconds_since(start));
      }
    rows.push_back(row);
  }
  return rows;
}

void print(const std::vector<Row>& rows, double peak) {
  double best[2] = {0, 0};
  for (const Row& r : rows)
    for (const int t : {0, 1}) best[t] = std::max(best[t], r.rate[t]);
  std::printf("peak fp32 %.1f GFLOP/s; best fp32 %.1f (%.0f%% of peak), best bf16 %.1f (%.0f%% of best fp32, %s)\n",
              peak / 1e9, best[0] / 1e9, 100 * best[0] / peak, best[1] / 1e9, 100 * best[1] / best[0],
              kernels::gemm_bf16_is_native() ? "native" : "widened to fp32");
  std::printf("%-15s %6s %6s %6s  %-11s %8s %7s %8s %7s %9s\n", "layer", "m", "n", "k", "layout", "fp32", "of best",
              "bf16", "of best", "bf16/fp32");
  for (const Row& r : rows)
    std::printf("%-15s %6lld %6lld %6lld  %-11s %8.1f %6.0f%% %8.1f %6.0f%% %8.0f%%\n", r.shape.name,
                static_cast<long long>(r.shape.m), static_cast<long long>(r.shape.n), static_cast<long long>(r.shape.k),
                layout_names[static_cast<int>(r.layout)], r.rate[0] / 1e9, 100 * r.rate[0] / best[0], r.rate[1] / 1e9,
                100 * r.rate[1] / best[1], 100 * r.rate[1] / r.rate[0]);
}

int run(int argc, char** argv) {
  bool smoke = false;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--smoke")
      smoke = true;
    else if ((threads = std::atoi(argv[i])) <= 0) {
      std::fprintf(stderr, "bench_matmul: '%s' is neither --smoke nor a number of threads\n", argv[i]);
      return 2;
    }
  }
  kernels::set_compute_threads(threads);
  const double peak = measure_peak_flops_f32(threads, smoke ? 0.01 : 0.5);
  const std::span<const Shape> shapes = smoke ? std::span<const Shape>(smoke_shapes) : full_shapes;
  std::vector<Row> rows;
  for (const Shape& s : shapes)
    for (const Row& row : measure(s, smoke ? 1 : 4)) rows.push_back(row);
  std::printf("%d threads\n", threads);
  print(rows, peak);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
