// Quantisation in blocks against the memory's bandwidth.
//
//     bench_quantize [--smoke] [threads] [block]        default: all cores, blocks of 256
//
// Bytes are those of numbers, codes and scales, each read or written once. The bound is the best of several streams
// through memory of the same moment: in place, or from one array to another, with ordinary or non-temporal stores. Each
// thread has a range of its own. Medians over rounds.
#include "kernels/cpu/quantize.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/stream.h"
#include "src/device/in_turn.h"
#include "src/device/link_measure.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

/// One thread's numbers, and room for their codes and scales.
struct Range {
  std::int64_t numel;
  Pages f32, b16, codes, scales;

  Range(std::int64_t n, const Quantization& q) : numel(n) {
    f32 = pages(4 * n), b16 = pages(2 * n), codes = pages(n), scales = pages(4 * quantized_blocks(n, q));
    fill_random(f32, Dtype::f32, 1);
    fill_random(b16, Dtype::bf16, 1);
  }
  static Pages pages(std::int64_t bytes) {
    Result<Pages> made = Pages::make(static_cast<std::uint64_t>(bytes));
    if (!made.ok()) {
      std::fprintf(stderr, "bench_quantize: %s\n", made.error().message.c_str());
      std::exit(1);
    }
    return std::move(*made);
  }
  template <class T>
  T* numbers() {
    return reinterpret_cast<T*>((sizeof(T) == 4 ? f32 : b16).data());
  }
  std::uint8_t* code() { return reinterpret_cast<std::uint8_t*>(codes.data()); }
  float* scale() { return reinterpret_cast<float*>(scales.data()); }
  /// From one half of the numbers to the other.
  kernels::StreamArrays halves() {
    auto* a = reinterpret_cast<double*>(f32.data());
    const std::int64_t half = numel / 4 / 8 * 8;
    return {a, a, a + half, half};
  }
};

struct Case {
  std::string name;
  double bytes;  ///< of a thread's pass
  std::function<void(Range&)> run;
};

template <class T>
void add_cases(std::vector<Case>& cases, const Quantization& q, std::int64_t n) {
  const std::string kind = std::string(sizeof(T) == 4 ? "f32" : "bf16") + ", " +
                           (q.format == CodeFormat::e4m3 ? "e4m3" : std::to_string(q.bits) + " bits");
  const double bytes = static_cast<double>(n) * sizeof(T) + static_cast<double>(quantized_bytes(n, q));
  cases.push_back(
      {"quantize " + kind, bytes, [=](Range& r) { kernels::quantize(r.numbers<T>(), n, q, r.code(), r.scale()); }});
  cases.push_back(
      {"dequantize " + kind, bytes, [=](Range& r) { kernels::dequantize(r.code(), r.scale(), n, q, r.numbers<T>()); }});
  if constexpr (sizeof(T) == 4)
    cases.push_back({"dequantize_add " + kind, bytes + 4 * static_cast<double>(n),
                     [=](Range& r) { kernels::dequantize_add(r.code(), r.scale(), n, q, r.numbers<T>()); }});
}

std::vector<Case> streams(std::int64_t n) {
  const double all = 8 * static_cast<double>(n), halves = 4 * static_cast<double>(n);
  const auto numbers = [](Range& r) { return std::span(r.numbers<float>(), static_cast<std::size_t>(r.numel)); };
  return {{"in place", all, [=](Range& r) { kernels::stream_update(numbers(r)); }},
          {"in place, prefetched", all, [=](Range& r) { kernels::stream_update_ahead(numbers(r)); }},
          {"copy", halves, [](Range& r) { kernels::stream_copy(r.halves()); }},
          {"copy, non-temporal", halves, [](Range& r) { kernels::stream_copy_nt(r.halves()); }}};
}

void measure(const Quantization& q, int threads, std::int64_t n, double seconds) {
  std::vector<Range> ranges;
  ranges.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) ranges.emplace_back(n, q);
  std::vector<Case> cases = streams(n);
  const std::size_t stream_count = cases.size();
  add_cases<float>(cases, q, n);
  add_cases<bf16>(cases, q, n);
  std::vector<ThreadPass> passes;
  passes.reserve(cases.size());
  for (const Case& c : cases)
    passes.emplace_back([&](int thread) {
      kernels::set_compute_threads(1);  // of this thread's team
      c.run(ranges[static_cast<std::size_t>(thread)]);
    });
  const std::vector<Passes> rates = measure_in_turn(passes, threads, seconds);
  const auto reached = [&](std::size_t i) { return cases[i].bytes * threads * rates[i].per_second; };
  std::size_t best = 0;
  for (std::size_t i = 1; i < stream_count; ++i) best = reached(i) > reached(best) ? i : best;
  for (std::size_t i = stream_count; i < cases.size(); ++i)
    std::printf("%-30s %9.2f %9.2f %7.2f %7.2f  %s\n", cases[i].name.c_str(), reached(i) / 1e9, reached(best) / 1e9,
                reached(i) / reached(best), rates[i].spread, cases[best].name.c_str());
}

int run(int argc, char** argv) {
  bool smoke = false;
  std::vector<int> numbers;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--smoke")
      smoke = true;
    else
      numbers.push_back(std::atoi(argv[i]));
  }
  const int threads = numbers.empty() ? usable_cores() : numbers[0];
  const Quantization eight{8, numbers.size() > 1 ? numbers[1] : 256}, four{4, eight.block},
      floats{8, eight.block, CodeFormat::e4m3};
  if (threads <= 0 || numbers.size() > 2 || !eight.is_valid()) {
    std::fprintf(stderr, "bench_quantize: give --smoke, a number of threads, a power of two from 32 to 2048\n");
    return 2;
  }
  const auto bytes = std::min(beyond_cache_bytes(), available_host_bytes() / 4);
  const std::int64_t n = smoke ? 5000 : static_cast<std::int64_t>(bytes) / threads / 4096 * 1024;
  std::printf("%d threads, %lld numbers each in blocks of %lld\n", threads, static_cast<long long>(n),
              static_cast<long long>(eight.block));
  std::printf("%-30s %9s %9s %7s %7s  %s\n", "", "GB/s", "stream", "ratio", "spread", "the stream is");
  for (const Quantization& q : {eight, four, floats}) measure(q, threads, n, smoke ? 0.001 : 1);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::run(argc, argv); }
