// What the benches of CUDA's matrix products share: options, a device or the reason why there is none, arrays, times.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/stream.h"
#include "sluice/dtype.h"
#include "sluice/random.h"

namespace sluice::bench {

using kernels::cuda::Stream;

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
inline void check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

struct CudaOptions {
  bool smoke = false;
  std::string json, filter;
  int rounds = 15;
};

/// Exits with status 2 if the arguments are wrong or there is no device.
inline CudaOptions cuda_options(const char* program, int argc, char** argv) {
  CudaOptions o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--smoke") {
      o.smoke = true;
      o.rounds = 2;
    } else if (arg == "--json" && i + 1 < argc) {
      o.json = argv[++i];
    } else if (arg == "--rounds" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      o.rounds = std::atoi(argv[++i]);
    } else if (!arg.empty() && arg[0] != '-' && o.filter.empty()) {
      o.filter = arg;
    } else {
      std::fprintf(stderr, "%s: '%s' is not one of --smoke, --json FILE, --rounds N, part of a name\n", program,
                   argv[i]);
      std::exit(2);
    }
  }
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "%s: no CUDA device: %s\n", program,
                 error != cudaSuccess ? cudaGetErrorString(error) : "the driver knows none");
    std::exit(2);
  }
  return o;
}

/// Device memory, filled with normal numbers: products of equal ones draw less power and run faster.
class Arrays {
 public:
  template <class T>
  T* make(std::int64_t n) {
    void* p = nullptr;
    check(cudaMalloc(&p, static_cast<std::size_t>(n) * sizeof(T)), "cudaMalloc");
    all_.push_back(p);
    const std::vector<T> from = numbers<T>();
    for (std::int64_t at = 0; at < n; at += static_cast<std::int64_t>(from.size()))
      check(cudaMemcpy(static_cast<T*>(p) + at, from.data(),
                       std::min(from.size(), static_cast<std::size_t>(n - at)) * sizeof(T), cudaMemcpyHostToDevice),
            "fill");
    return static_cast<T*>(p);
  }
  void* make(std::int64_t n, Dtype dtype) {
    return dtype == Dtype::bf16 ? static_cast<void*>(make<bf16>(n)) : static_cast<void*>(make<float>(n));
  }
  Arrays() = default;
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() {
    for (void* p : all_) static_cast<void>(cudaFree(p));
  }

 private:
  template <class T>
  static std::vector<T> numbers() {
    std::vector<T> made(1 << 18);
    for (std::size_t i = 0; i < made.size(); ++i) {
      const auto x = static_cast<float>(philox_normal(1, i, 0));
      if constexpr (sizeof(T) == sizeof(bf16))
        made[i] = to_bf16(x);
      else
        made[i] = static_cast<T>(x);
    }
    return made;
  }
  std::vector<void*> all_;
};

/// Seconds of one call, from events around `calls` of them.
class Clock {
 public:
  Clock() {
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  ~Clock() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  double seconds(Stream& on, int calls, const std::function<void()>& f) {
    check(cudaEventRecord(begin_, on.handle()), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) f();
    check(cudaEventRecord(end_, on.handle()), "cudaEventRecord");
    check(on.synchronize());
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3 / calls;
  }

 private:
  cudaEvent_t begin_{}, end_{};
};

/// Seconds of each of `work`, `calls` at a time, in rounds of all of them after one to warm up: [work][round].
inline std::vector<std::vector<double>> rounds(Stream& on, int count, int calls,
                                               const std::vector<std::function<void()>>& work) {
  Clock clock;
  std::vector<std::vector<double>> seconds(work.size());
  for (int round = -1; round < count; ++round)
    for (std::size_t i = 0; i < work.size(); ++i) {
      const double took = clock.seconds(on, calls, work[i]);
      if (round >= 0) seconds[i].push_back(took);
    }
  return seconds;
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Median over rounds of a's seconds over b's.
inline double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

/// One object with what the device is and an array of `rows`, each the inside of an object. Exits if it cannot.
inline void write_json(const CudaOptions& options, const std::vector<std::string>& rows) {
  if (options.json.empty()) return;
  cudaDeviceProp device{};
  int driver = 0;
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::FILE* file = std::fopen(options.json.c_str(), "w");
  bool ok = file != nullptr;
  if (ok) {
    std::fprintf(file,
                 "{\"schema\": 1, \"device\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
                 "\"cuda_driver\": %d, \"cuda_runtime\": %d, \"smoke\": %s, \"rounds\": %d, \"cases\": [",
                 device.name, device.major, device.minor, device.multiProcessorCount, driver, CUDART_VERSION,
                 options.smoke ? "true" : "false", options.rounds);
    for (std::size_t i = 0; i < rows.size(); ++i) std::fprintf(file, "%s\n  {%s}", i == 0 ? "" : ",", rows[i].c_str());
    std::fprintf(file, "\n]}\n");
    ok = std::fclose(file) == 0;
  }
  if (ok) return;
  std::fprintf(stderr, "%s cannot be written\n", options.json.c_str());
  std::exit(1);
}

template <class... Values>
std::string text(const char* format, Values... values) {
  char line[512];
  std::snprintf(line, sizeof line, format, values...);
  return line;
}

}  // namespace sluice::bench
