// Bandwidth of the links between tiers that are memory, one function per link. The CPU device lies in host memory, so
// that host to host is the only one here; drives are measured in profile_drive.
#pragma once

#include <array>
#include <cstdint>

#include "src/device/in_turn.h"
#include "src/device/numa.h"

namespace sluice {

struct Bandwidth {
  double bytes_per_second = 0;  ///< read plus written, as STREAM counts
  double spread = 0;            ///< (most - least) / median over rounds
};

/// The engine's copy (HostDevice, what the h2d and d2h lanes call) and what it is held against.
enum class HostLoop : std::uint8_t { engine_copy, stream_copy, stream_copy_nt, scale, add, triad, in_place };
constexpr std::array<const char*, 7> host_loop_names{"engine copy",  "STREAM copy", "STREAM copy, non-temporal",
                                                     "STREAM scale", "STREAM add",  "STREAM triad",
                                                     "in place"};

struct HostLink {
  std::array<Bandwidth, host_loop_names.size()> loops;

  const Bandwidth& of(HostLoop loop) const { return loops[static_cast<std::size_t>(loop)]; }
  double best_stream_copy() const;  ///< with ordinary or non-temporal stores, whichever is quicker
};

/// Operands of the loops, in memory as the arenas have it. Callers see to it that they fit into available_host_bytes().
struct HostArrays {
  static constexpr std::uint64_t count = 3;
  Pages a, b, c;
  static Result<HostArrays> make(std::uint64_t bytes_each);
};

struct HostTransfer {
  std::uint64_t bytes = 0;  ///< a multiple of 4096 and at least a page per thread; each copies an equal part
  int threads = 1;
  double seconds = 0.25;  ///< per loop
  bool cold = false;      ///< walks through the arrays, instead of staying in their first `bytes`
};
HostLink measure_host_link(const HostArrays& arrays, const HostTransfer& transfer);

/// The engine's copy from memory of one NUMA node to memory of another, by threads on the cores of `from`.
Result<Bandwidth> measure_numa_copy(const NumaNode& from, const NumaNode& to, std::uint64_t bytes, int threads,
                                    double seconds);

struct ChecksumRate {
  Bandwidth checksum;  ///< of what is read
  Bandwidth in_place;  ///< one thread that reads and writes memory and does nothing else
};
/// What a drive's lane does to each block, in one thread.
Result<ChecksumRate> measure_checksum_rate(std::uint64_t bytes, double seconds);

/// Memory that can be had without swapping.
std::uint64_t available_host_bytes();

}  // namespace sluice
