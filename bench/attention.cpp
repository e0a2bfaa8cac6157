// Attention against the chip's peaks: forward and backward, f32 and bf16, at the shapes of the presets.
//
//     bench_attention [--smoke] [threads]
//
// A causal product of queries and keys is half of a full one: forward has two of them (scores, output), backward five
// (scores again, and the gradients of the probabilities, queries, keys and values). Rates in GFLOP/s, best of the
// repetitions, which are interleaved, so that a disturbance hits all alike.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "sluice/random.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

struct Case {
  const char* name;
  std::int64_t batch, queries, keys, heads, kv_heads, head_dim;
};
constexpr Case smoke_cases[] = {{"smoke", 1, 70, 70, 2, 1, 24}};
constexpr Case full_cases[] = {
    {"llama-25m", 2, 256, 256, 8, 4, 32},       {"gpt2-124m", 1, 1024, 1024, 12, 12, 64},
    {"llama-1b", 2, 1024, 1024, 32, 4, 64},     {"llama-7b", 1, 2048, 2048, 32, 32, 128},
    {"llama-1b decode", 1, 1, 1024, 32, 4, 64}, {"llama-7b decode", 1, 1, 2048, 32, 32, 128}};

kernels::AttentionShape shape_of(const Case& c) {
  const std::int64_t q_width = c.heads * c.head_dim, k_width = c.kv_heads * c.head_dim;
  return {c.batch, c.queries, c.keys,  c.heads, c.kv_heads, c.head_dim,
          q_width, k_width,   k_width, q_width, 0,          1.0f / std::sqrt(static_cast<float>(c.head_dim))};
}

/// Multiply-adds of one causal product, times two.
double product_flop(const Case& c) {
  const auto queries = static_cast<double>(c.queries), keys = static_cast<double>(c.keys);
  const double pairs = queries * (keys - queries) + queries * (queries + 1) / 2;
  return 2 * pairs * static_cast<double>(c.batch * c.heads * c.head_dim);
}

template <class T>
std::vector<T> random_values(std::int64_t n, std::uint64_t seed) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<float>(2 * philox_uniform(seed, i, 0) - 1);
    if constexpr (std::is_same_v<T, bf16>)
      values[i] = to_bf16(x);
    else
      values[i] = x;
  }
  return values;
}

template <class T>
struct Operands {
  kernels::AttentionShape shape;
  std::vector<T> q, k, v, out, d_out, dq, dk, dv;
  std::vector<float> lse, workspace;
  explicit Operands(const Case& c) : shape(shape_of(c)) {
    const std::int64_t q_numel = c.batch * c.queries * shape.q_stride, k_numel = c.batch * c.keys * shape.k_stride;
    q = random_values<T>(q_numel, 1), d_out = random_values<T>(q_numel, 2);
    k = random_values<T>(k_numel, 3), v = random_values<T>(k_numel, 4);
    for (std::vector<T>* x : {&out, &dq}) x->resize(q.size());
    for (std::vector<T>* x : {&dk, &dv}) x->resize(k.size());
    lse.resize(static_cast<std::size_t>(c.batch * c.heads * c.queries));
    const Dtype dtype = std::is_same_v<T, bf16> ? Dtype::bf16 : Dtype::f32;
    workspace.resize(kernels::attention_workspace_bytes(shape, dtype) / sizeof(float) + 16);
  }
  std::span<std::byte> scratch() {
    void* at = workspace.data();
    std::size_t space = workspace.size() * sizeof(float);
    std::align(64, space - 64, at, space);
    return {static_cast<std::byte*>(at), space};
  }
  void forward() { kernels::attention_forward(shape, q.data(), k.data(), v.data(), out.data(), lse.data(), scratch()); }
  void backward() {
    kernels::attention_backward(shape, q.data(), k.data(), v.data(), out.data(), d_out.data(), lse.data(), dq.data(),
                                dk.data(), dv.data(), scratch());
  }
};

/// Best FLOP/s so far.
struct Rates {
  double forward = 0, backward = 0;
};

template <class F>
double seconds(const F& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class T>
void measure(const Case& c, Operands<T>& o, Rates& best) {
  const double flop = product_flop(c);
  best.forward = std::max(best.forward, 2 * flop / seconds([&] { o.forward(); }));
  if (c.queries == 1) return;  // a decoded token is never differentiated
  best.backward = std::max(best.backward, 5 * flop / seconds([&] { o.backward(); }));
}

void print(const Case& c, const char* dtype, const Rates& r, double peak) {
  std::printf("%-16s %-5s %9.2f %9.1f %6.0f%% %9.1f %6.0f%%\n", c.name, dtype, 2 * product_flop(c) / 1e9,
              r.forward / 1e9, 100 * r.forward / peak, r.backward / 1e9, 100 * r.backward / peak);
}

int run(int argc, char** argv) {
  bool smoke = false;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--smoke")
      smoke = true;
    else if ((threads = std::atoi(argv[i])) <= 0) {
      std::fprintf(stderr, "bench_attention: '%s' is neither --smoke nor a number of threads\n", argv[i]);
      return 2;
    }
  }
  kernels::set_compute_threads(threads);
  const double peak_seconds = smoke ? 0.01 : 1;
  const double peak_f32 = measure_peak_flops_f32(threads, peak_seconds);
  const double native = measure_peak_flops_bf16(threads, peak_seconds), peak_bf16 = native > 0 ? native : peak_f32;
  std::printf("%d threads; peak fp32 %.1f GFLOP/s, bf16 %.1f (%s)\n", threads, peak_f32 / 1e9, peak_bf16 / 1e9,
              native > 0 ? "native" : "widened to fp32");
  std::printf("%-16s %-5s %9s %9s %7s %9s %7s\n", "shape", "dtype", "GFLOP", "forward", "of peak", "backward",
              "of peak");
  for (const Case& c : smoke ? std::span<const Case>(smoke_cases) : full_cases) {
    Operands<float> f32(c);
    Operands<bf16> b16(c);
    Rates f32_rates, b16_rates;
    for (int r = 0; r < (smoke ? 1 : 10); ++r) {
      measure(c, f32, f32_rates);
      measure(c, b16, b16_rates);
    }
    print(c, "f32", f32_rates, peak_f32);
    print(c, "bf16", b16_rates, peak_bf16);
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
