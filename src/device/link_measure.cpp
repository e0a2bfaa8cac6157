#include "src/device/link_measure.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "io/checksum.h"
#include "kernels/cpu/stream.h"

namespace sluice {
namespace {

constexpr std::uint64_t page_bytes = 4096;

struct Part {
  std::uint64_t first = 0, bytes = 0;
};

/// Whole pages, as many for each thread as for the others or one more.
Part part_of(std::uint64_t bytes, int thread, int threads) {
  const std::uint64_t pages = bytes / page_bytes;
  const auto at = [&](int t) { return pages * static_cast<std::uint64_t>(t) / static_cast<std::uint64_t>(threads); };
  return {at(thread) * page_bytes, (at(thread + 1) - at(thread)) * page_bytes};
}

/// Zeros, denormals and pages that share one physical zero page would all be measured differently.
void fill(const Pages& pages, double value) {
  std::fill_n(reinterpret_cast<double*>(pages.data()), pages.bytes() / sizeof(double), value);
}

using StreamLoop = void (*)(const kernels::StreamArrays&);

/// Copies c = a as the lanes do it.
void engine_copy(const kernels::StreamArrays& s) {
  HostDevice device;
  const Status copied = device.copy(reinterpret_cast<std::byte*>(s.c), reinterpret_cast<const std::byte*>(s.a),
                                    static_cast<std::uint64_t>(s.numel) * sizeof(double));
  (void)copied;  // on the host it always succeeds
}

void update_in_place(const kernels::StreamArrays& s) {
  kernels::stream_update({reinterpret_cast<float*>(s.c), static_cast<std::size_t>(s.numel) * 2});
}

struct CountedLoop {
  StreamLoop run;
  int arrays;  ///< that it reads or writes: what STREAM counts
};
/// In the order of HostLoop.
constexpr std::array<CountedLoop, host_loop_names.size()> host_loops{{{engine_copy, 2},
                                                                      {kernels::stream_copy, 2},
                                                                      {kernels::stream_copy_nt, 2},
                                                                      {kernels::stream_scale, 2},
                                                                      {kernels::stream_add, 3},
                                                                      {kernels::stream_triad, 3},
                                                                      {update_in_place, 2}}};

Bandwidth bandwidth(const Passes& passes, double bytes) { return {bytes * passes.per_second, passes.spread}; }

}  // namespace

double HostLink::best_stream_copy() const {
  return std::max(of(HostLoop::stream_copy).bytes_per_second, of(HostLoop::stream_copy_nt).bytes_per_second);
}

Result<HostArrays> HostArrays::make(std::uint64_t bytes_each) {
  HostArrays arrays;
  double value = 1;
  for (Pages* pages : {&arrays.a, &arrays.b, &arrays.c}) {
    SLUICE_ASSIGN(*pages, Pages::make(bytes_each));
    fill(*pages, value);
    value *= 2;
  }
  return arrays;
}

HostLink measure_host_link(const HostArrays& arrays, const HostTransfer& transfer) {
  const std::uint64_t bytes = transfer.bytes, places = transfer.cold ? arrays.a.bytes() / bytes : 1;
  struct alignas(64) Walk {
    std::uint64_t steps = 0;
  };
  std::vector<Walk> walks(static_cast<std::size_t>(transfer.threads));
  std::vector<ThreadPass> passes;
  passes.reserve(host_loops.size());
  for (const CountedLoop& loop : host_loops)
    passes.emplace_back([&, run = loop.run](int thread) {
      const Part part = part_of(bytes, thread, transfer.threads);
      const std::uint64_t first = part.first + bytes * (walks[static_cast<std::size_t>(thread)].steps++ % places);
      const auto at = [first](const Pages& p) { return reinterpret_cast<double*>(p.data() + first); };
      run({at(arrays.a), at(arrays.b), at(arrays.c), static_cast<std::int64_t>(part.bytes / sizeof(double))});
    });
  const std::vector<Passes> measured = measure_in_turn(passes, transfer.threads, transfer.seconds);
  HostLink link;
  for (std::size_t l = 0; l < host_loops.size(); ++l)
    link.loops[l] = bandwidth(measured[l], static_cast<double>(bytes) * host_loops[l].arrays);
  return link;
}

Result<Bandwidth> measure_numa_copy(const NumaNode& from, const NumaNode& to, std::uint64_t bytes, int threads,
                                    double seconds) {
  SLUICE_ASSIGN(const Pages src, pages_on(from.id, bytes));
  SLUICE_ASSIGN(const Pages dst, pages_on(to.id, bytes));
  fill(src, 1);
  const ThreadPass copy = [&](int thread) {
    const Part part = part_of(bytes, thread, threads);
    const Status copied = HostDevice().copy(dst.data() + part.first, src.data() + part.first, part.bytes);
    (void)copied;  // on the host it always succeeds
  };
  Bandwidth result;
  SLUICE_TRY(run_on(from, [&] {
    result = bandwidth(measure_in_turn({&copy, 1}, threads, seconds).front(), 2 * static_cast<double>(bytes));
  }));
  return result;
}

Result<ChecksumRate> measure_checksum_rate(std::uint64_t bytes, double seconds) {
  SLUICE_ASSIGN(const Pages memory, Pages::make(bytes));
  fill(memory, 1);
  volatile std::uint64_t sink = 0;
  const std::array<ThreadPass, 2> passes{
      [&](int) {
        sink = checksum({memory.data(), bytes});
      },
      [&](int) {
        kernels::stream_update({reinterpret_cast<float*>(memory.data()), bytes / sizeof(float)});
      }};
  const std::vector<Passes> measured = measure_in_turn(passes, 1, seconds);
  return ChecksumRate{bandwidth(measured[0], static_cast<double>(bytes)),
                      bandwidth(measured[1], 2 * static_cast<double>(bytes))};
}

std::uint64_t available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::uint64_t kib = 0; file >> name >> kib && std::getline(file, unit);)
    if (name == "MemAvailable:") return kib << 10;
  return 0;
}

}  // namespace sluice
