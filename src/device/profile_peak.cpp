// Peak arithmetic: independent chains of multiply-adds on registers, on the widest units that the CPU has.
#include <immintrin.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm_peak.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

constexpr int chains = 10;  ///< at least latency (4-5) times units (2)
constexpr int rounds = 20000;

double multiply_add_f32() { return kernels::multiply_add_burst(rounds); }

/// The FLOP it did. The empty asm keeps the compiler from folding the chains away.
__attribute__((target("avx512f,avx512bf16"))) double dot_avx512_bf16() {
  __m512 x[chains];
  for (__m512& v : x) v = _mm512_set1_ps(0.0f);
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  for (int i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (__m512& v : x) {
      v = _mm512_dpbf16_ps(v, a, a);
      asm volatile("" : "+v"(v));
    }
  return 2.0 * 32 * chains * rounds;
}

/// Best rate over passes that all threads make side by side.
double best_rate(double (*kernel)(), int threads, double seconds) {
  double best = 0;
  for (const double end = now_seconds() + seconds; best == 0 || now_seconds() < end;) {
    std::vector<double> rates(static_cast<std::size_t>(threads));
    std::vector<std::thread> team;
    team.reserve(rates.size());
    for (double& rate : rates)
      team.emplace_back([&rate, kernel, seconds] {
        double flop = 0;
        const double start = now_seconds();
        double now = start;
        for (; now - start < seconds / 4; now = now_seconds()) flop += kernel();
        rate = flop / (now - start);
      });
    for (std::thread& t : team) t.join();
    double sum = 0;
    for (const double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace

double measure_peak_flops_f32(int threads, double seconds) { return best_rate(multiply_add_f32, threads, seconds); }

double measure_peak_flops_bf16(int threads, double seconds) {
  if (kernels::tile_multiply_burst() > 0) return best_rate(kernels::tile_multiply_burst, threads, seconds);
  if (__builtin_cpu_supports("avx512bf16")) return best_rate(dot_avx512_bf16, threads, seconds);
  return 0;
}

}  // namespace sluice
