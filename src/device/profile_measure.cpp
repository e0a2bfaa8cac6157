#include "src/device/profile_measure.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "io/checksum.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/stream.h"
#include "sluice/adamw.h"
#include "sluice/random.h"

namespace sluice {
namespace {

/// Memory as the arenas have it. Without it nothing can be measured, so that not having it ends the program.
Pages pages(std::uint64_t bytes) {
  auto made = Pages::make(bytes);
  SLUICE_CHECK(made.ok(), "%s", made.error().message.c_str());
  return std::move(*made);
}
float* floats(const Pages& p) { return reinterpret_cast<float*>(p.data()); }

/// Seconds of the quickest pass: at least two, then as many as the time allows.
double quickest(double seconds, const std::function<void()>& pass) {
  double best = 1e300;
  const double end = now_seconds() + seconds;
  for (int i = 0; i < 2 || now_seconds() < end; ++i) {
    const double start = now_seconds();
    pass();
    best = std::min(best, now_seconds() - start);
  }
  return best;
}

/// Quickest pass of work cut into equal contiguous parts, one per thread.
double quickest_on(int threads, double seconds, std::int64_t numel,
                   const std::function<void(std::int64_t, std::int64_t)>& part) {
  return quickest(seconds, [&] {
    std::vector<std::thread> team;
    const std::int64_t each = (numel / threads + 4095) / 4096 * 4096;
    for (std::int64_t first = each; first < numel; first += each)
      team.emplace_back([&part, first, each, numel] { part(first, std::min(each, numel - first)); });
    part(0, std::min(each, numel));
    for (std::thread& t : team) t.join();
  });
}

/// Bytes per second of `pass` over floats beyond caches.
double float_bytes_per_second(int threads, double seconds, const std::function<void(std::span<float>)>& pass) {
  const std::uint64_t bytes = beyond_cache_bytes();
  const Pages memory = pages(bytes);
  const double took =
      quickest_on(threads, seconds, static_cast<std::int64_t>(bytes / 4), [&](std::int64_t first, std::int64_t n) {
        pass({floats(memory) + first, static_cast<std::size_t>(n)});
      });
  return static_cast<double>(bytes) / took;
}

constexpr GemmShape usual_shapes[] = {
    {2048, 2048, 2048, false, true}, {2048, 2048, 2048, false, false}, {2048, 2048, 2048, true, false},
    {1024, 3072, 768, false, true},  {1024, 768, 3072, false, false},  {3072, 768, 1024, true, false},
    {2048, 5632, 2048, false, true},
};

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

std::uint64_t beyond_cache_bytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::max<std::uint64_t>(64u << 20, cache > 0 ? 4 * static_cast<std::uint64_t>(cache) : 0);
}

std::span<const GemmShape> usual_gemm_shapes() { return usual_shapes; }

void fill_random(const Pages& pages, Dtype dtype, float scale) {
  const std::uint64_t numel = pages.bytes() / dtype_bytes(dtype);
  const std::uint64_t period = std::min<std::uint64_t>(numel, 65536);  // repetition does not matter to the clock
  std::vector<float> values(period);
  for (std::uint64_t i = 0; i < period; ++i) values[i] = scale * static_cast<float>(philox_uniform(1, i, 0) - 0.5);
  for (std::uint64_t at = 0; at < numel; at += period) {
    const auto n = static_cast<std::int64_t>(std::min(period, numel - at));
    if (dtype == Dtype::bf16)
      kernels::narrow(values.data(), reinterpret_cast<bf16*>(pages.data()) + at, n);
    else
      std::copy_n(values.data(), n, reinterpret_cast<float*>(pages.data()) + at);
  }
}

Status fill_random(DeviceMemory& memory, std::byte* address, std::uint64_t bytes, Dtype dtype, float scale) {
  constexpr std::uint64_t noise_bytes = 4u << 20;
  SLUICE_ASSIGN(const Pages noise, Pages::make(std::min(bytes, noise_bytes)));
  fill_random(noise, dtype, scale);
  for (std::uint64_t at = 0; at < bytes; at += noise_bytes)
    SLUICE_TRY(memory.copy(address + at, noise.data(), std::min(noise_bytes, bytes - at)));
  return success();
}

double measure_gemm_flops(std::span<const GemmShape> shapes, Dtype dtype, double seconds) {
  double best = 0;
  for (const GemmShape& s : shapes) {
    const auto elements = [](std::int64_t a, std::int64_t b) { return static_cast<std::uint64_t>(a * b); };
    const std::uint64_t a_bytes = elements(s.m, s.k) * dtype_bytes(dtype),
                        b_bytes = elements(s.k, s.n) * dtype_bytes(dtype);
    const std::uint64_t workspace_bytes = kernels::gemm_workspace_bytes(s.m, s.n, s.k, dtype, Dtype::f32);
    const auto a = pages(a_bytes), b = pages(b_bytes), c = pages(elements(s.m, s.n) * 4);
    const auto workspace = pages(workspace_bytes);
    fill_random(a, dtype, 1);
    fill_random(b, dtype, 1);
    const kernels::ConstMatrix ma{a.data(), dtype, s.a_transposed ? s.m : s.k, s.a_transposed};
    const kernels::ConstMatrix mb{b.data(), dtype, s.b_transposed ? s.k : s.n, s.b_transposed};
    const kernels::Matrix mc{c.data(), Dtype::f32, s.n};
    const double took = quickest(seconds / static_cast<double>(shapes.size()), [&] {
      kernels::gemm(ma, mb, mc, s.m, s.n, s.k, false, {workspace.data(), workspace_bytes});
    });
    best = std::max(best, 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / took);
  }
  return best;
}

double measure_copy_bytes_per_second(int threads, double seconds) {
  const std::uint64_t bytes = beyond_cache_bytes();
  const auto from = pages(bytes), to = pages(bytes);
  const double took =
      quickest_on(threads, seconds, static_cast<std::int64_t>(bytes), [&](std::int64_t first, std::int64_t n) {
        kernels::copy_past_caches(to.data() + first, from.data() + first, static_cast<std::uint64_t>(n));
      });
  return static_cast<double>(bytes) / took;
}

double measure_stream_bytes_per_second(int threads, double seconds) {
  return float_bytes_per_second(threads, seconds, [](std::span<float> part) { kernels::stream_update(part); });
}

double measure_adamw_parameters_per_second(Dtype dtype, int threads, double seconds) {
  const auto numel = static_cast<std::int64_t>(beyond_cache_bytes() / 16);
  const std::uint64_t bytes = static_cast<std::uint64_t>(numel) * 4;
  const auto parameter = pages(bytes), remainder = pages(bytes / 2), exp_avg = pages(bytes), exp_avg_sq = pages(bytes),
             gradient = pages(bytes);
  std::fill_n(floats(gradient), numel, 1e-3f);
  const AdamwStep step;
  const double took = quickest_on(threads, seconds, numel, [&](std::int64_t first, std::int64_t n) {
    if (dtype == Dtype::bf16)
      adamw_bf16(step, reinterpret_cast<bf16*>(parameter.data()) + first,
                 reinterpret_cast<std::int16_t*>(remainder.data()) + first, floats(exp_avg) + first,
                 floats(exp_avg_sq) + first, floats(gradient) + first, n);
    else
      adamw_f32(step, floats(parameter) + first, floats(exp_avg) + first, floats(exp_avg_sq) + first,
                floats(gradient) + first, n);
  });
  return static_cast<double>(numel) / took;
}

double measure_norm_bytes_per_second(int threads, double seconds) {
  return float_bytes_per_second(threads, seconds, [](std::span<float> part) {
    double sum = 0;
    add_squared_norm(part.data(), static_cast<std::int64_t>(part.size()), &sum);
  });
}

double measure_checksum_bytes_per_second(double seconds) {
  const std::uint64_t bytes = beyond_cache_bytes();
  const auto memory = pages(bytes);
  volatile std::uint64_t sink = 0;
  const double took = quickest(seconds, [&] { sink = checksum({memory.data(), bytes}); });
  return static_cast<double>(bytes) / took;
}

}  // namespace sluice
