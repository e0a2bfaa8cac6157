// AdamW against its bound: an in-place stream over the same bytes, measured in the same run, in cache and out of it.
//
//     bench_adamw [--smoke]
//
// Bytes by the law: parameter 2 + 2, remainder 2 + 2, exp_avg 4 + 4, exp_avg_sq 4 + 4, gradient 2 or 4 read.
#include "sluice/adamw.h"

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/stream.h"

namespace sluice {
namespace {

struct State {
  std::vector<bf16> parameter, gradient16;
  std::vector<std::int16_t> remainder;
  std::vector<float> master, exp_avg, exp_avg_sq, gradient, stream;

  State(std::int64_t n, std::int64_t bytes)
      : parameter(n),
        gradient16(n, to_bf16(1e-3f)),
        remainder(n),
        master(n, 0.02f),
        exp_avg(n, 1e-3f),
        exp_avg_sq(n, 1e-6f),
        gradient(n, 1e-3f),
        stream(static_cast<std::size_t>(n * bytes / 8), 1.0f) {
    split_master(master.data(), parameter.data(), remainder.data(), n);
  }
};

enum class Kind { bf16_bf16, bf16_f32, f32 };
struct Case {
  Kind kind;
  const char* name;
  std::int64_t bytes;  ///< of memory traffic per parameter
};
constexpr Case cases[] = {
    {Kind::bf16_bf16, "bf16, bf16 gradient", 26}, {Kind::bf16_f32, "bf16, fp32 gradient", 28}, {Kind::f32, "fp32", 28}};

void update(Kind kind, State& s) {
  AdamwStep step;
  step.step = 10;
  step.lr = 1e-6f;
  const auto n = static_cast<std::int64_t>(s.master.size());
  if (kind == Kind::bf16_bf16)
    adamw_bf16(step, s.parameter.data(), s.remainder.data(), s.exp_avg.data(), s.exp_avg_sq.data(), s.gradient16.data(),
               n);
  else if (kind == Kind::bf16_f32)
    adamw_bf16(step, s.parameter.data(), s.remainder.data(), s.exp_avg.data(), s.exp_avg_sq.data(), s.gradient.data(),
               n);
  else
    adamw_f32(step, s.master.data(), s.exp_avg.data(), s.exp_avg_sq.data(), s.gradient.data(), n);
}

using Clock = std::chrono::steady_clock;

/// Best seconds per pass of `work` and of `bound`, taken in turns, each by all threads at once on their own state.
struct Times {
  double work = 1e30, bound = 1e30;
};

Times measure(const Case& c, int threads, std::int64_t numel, int passes, int rounds) {
  std::barrier meet(threads);
  std::vector<Times> per_thread(static_cast<std::size_t>(threads));
  std::vector<std::thread> team;
  team.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t)
    team.emplace_back([&, t] {
      State state(numel / threads, c.bytes);  // touched first by the thread that uses it
      const auto seconds = [&](const auto& f) {
        meet.arrive_and_wait();
        const auto start = Clock::now();
        for (int p = 0; p < passes; ++p) f();
        meet.arrive_and_wait();
        return std::chrono::duration<double>(Clock::now() - start).count() / passes;
      };
      Times& best = per_thread[static_cast<std::size_t>(t)];
      for (int r = 0; r <= rounds; ++r) {  // the first round warms up
        const double work = seconds([&] { update(c.kind, state); });
        const double bound = seconds([&] { kernels::stream_update(state.stream); });
        if (r == 0) continue;
        best = {std::min(best.work, work), std::min(best.bound, bound)};
      }
    });
  for (auto& thread : team) thread.join();
  return per_thread.front();
}

int run(bool smoke) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::printf("%-12s %-20s %7s %12s %10s %12s %12s %6s\n", "where", "state", "threads", "parameters", "Mparam/s",
              "GB/s", "bound GB/s", "ratio");
  for (const bool cached : {true, false}) {
    for (const Case& c : cases) {
      for (int threads = 1; threads <= cores; threads = threads == cores ? cores + 1 : std::min(cores, 2 * threads)) {
        // 8192 parameters are about 130 KB, which second-level caches hold; 2^24 are 260 MB. Rounds are short and
        // many, so that the best one is undisturbed also on a machine with other work.
        const std::int64_t numel = cached ? 8192 * threads : smoke ? 1 << 18 : 1 << 24;
        const Times best = measure(c, threads, numel, cached && !smoke ? 50 : 1, smoke ? 1 : cached ? 400 : 40);
        const auto n = static_cast<double>(numel), bytes = n * static_cast<double>(c.bytes);
        std::printf("%-12s %-20s %7d %12lld %10.0f %12.2f %12.2f %6.2f\n", cached ? "in cache" : "out of cache", c.name,
                    threads, static_cast<long long>(numel), n / best.work / 1e6, bytes / best.work / 1e9,
                    bytes / best.bound / 1e9, best.bound / best.work);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const bool smoke = argc == 2 && std::strcmp(argv[1], "--smoke") == 0;
  if (argc > 1 && !smoke) {
    std::fprintf(stderr, "bench_adamw: unknown argument %s: only --smoke is known\n", argv[1]);
    return 2;
  }
  return sluice::run(smoke);
}
