// Peak arithmetic: independent chains of fused multiply-adds on registers, per instruction set, chosen at run time.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "src/device/profile_measure.h"

namespace sluice {
namespace {

constexpr int chains = 10;  ///< at least latency (4-5) times units (2)
constexpr int rounds = 20000;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Each returns the FLOP it did. The empty asm keeps the compiler from folding the chains away.
double fma_scalar() {
  float x[chains];
  std::fill_n(x, chains, 1.0f);
  for (int i = 0; i < rounds; ++i)
    for (float& v : x) {
      v = v * 0.999f + 1e-3f;
      asm volatile("" : "+x"(v));
    }
  return 2.0 * chains * rounds;
}

__attribute__((target("avx2,fma"))) double fma_avx2() {
  __m256 x[chains];
  for (__m256& v : x) v = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (__m256& v : x) {
      v = _mm256_fmadd_ps(v, a, b);
      asm volatile("" : "+x"(v));
    }
  return 2.0 * 8 * chains * rounds;
}

__attribute__((target("avx512f"))) double fma_avx512() {
  __m512 x[chains];
  for (__m512& v : x) v = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int i = 0; i < rounds; ++i)
#pragma GCC unroll 10
    for (__m512& v : x) {
      v = _mm512_fmadd_ps(v, a, b);
      asm volatile("" : "+v"(v));
    }
  return 2.0 * 16 * chains * rounds;
}

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

bool has_amx_bf16() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (edx >> 22 & 1) != 0;
}

/// Best rate over passes that all threads make side by side.
double best_rate(double (*kernel)(), int threads, double seconds) {
  double best = 0;
  for (const double end = now_seconds() + seconds; best == 0 || now_seconds() < end;) {
    std::vector<double> rates(static_cast<std::size_t>(threads));
    std::vector<std::thread> team;
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

double measure_peak_flops_f32(int threads, double seconds) {
  if (__builtin_cpu_supports("avx512f")) return best_rate(fma_avx512, threads, seconds);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return best_rate(fma_avx2, threads, seconds);
  return best_rate(fma_scalar, threads, seconds);
}

double measure_peak_flops_bf16(int threads, double seconds) {
  // One tile product is 16 x 16 x 32 multiply-adds in 16 cycles (Intel's optimization manual, chapter on AMX).
  if (has_amx_bf16()) return measure_clock_hz(seconds) * 1024.0 * threads;
  if (__builtin_cpu_supports("avx512bf16")) return best_rate(dot_avx512_bf16, threads, seconds);
  return 0;
}

double measure_clock_hz(double seconds) {
  constexpr std::uint64_t adds = 1u << 20;  // one after the other: a cycle each
  double best = 0;
  for (const double end = now_seconds() + seconds; now_seconds() < end;) {
    std::uint64_t x = 1;
    const double start = now_seconds();
    for (std::uint64_t i = 0; i < adds / 16; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) asm volatile("addq $1, %0" : "+r"(x));
    }
    best = std::max(best, static_cast<double>(adds) / (now_seconds() - start));
  }
  return best;
}

}  // namespace sluice
