// What the parts of `sluice bench io` share: the options, a measurement as a row and as JSON.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/device/drive_bench.h"
#include "tools/terminal.h"

namespace sluice::tools {

/// Of what a study tries.
constexpr std::uint64_t sweep_block_bytes_min = 4u << 10, tune_block_bytes_min = 64u << 10;

struct BenchIoOptions {
  std::vector<std::string> paths;
  std::uint64_t file_bytes = 1ull << 30;
  StreamSetting setting;
  std::vector<StreamMode> modes;
  double seconds = 2;
  bool seconds_given = false;
  bool json = false;
  std::string svg, profile;
  int pairs = 15;
  const std::atomic<bool>* stop = nullptr;
};

/// {backend, mode, pattern, block_bytes, depth, threads, bytes_per_second, read_..., write_..., iops, latency_us{p50,
/// p99, p999, max}, cpu_seconds_per_gib, sync_seconds, backend_detail}
nlohmann::ordered_json to_json(const StreamSetting& setting, const StreamResult& result);
/// The name at the start of a queue's description.
std::string backend_name(const StreamResult& result);
std::string microseconds(double seconds);

/// Of requests that are under way at once, on all paths and threads; mixed: of reads and of writes.
std::uint64_t in_flight_bytes(const StreamSetting& setting, std::size_t paths);

/// Files on all paths, striped by their measured bandwidths where there are several, with a progress line.
Result<DriveBench> open_drive_bench(const BenchIoOptions& options, ProgressLine& line);

/// Block x depth x backend: table, picture, JSON.
Status bench_io_sweep(const BenchIoOptions& options);
/// The cheapest requests within 1% of the best rate, into the hardware profile.
Status bench_io_tune(const BenchIoOptions& options);
/// The same streams by fio, interleaved, and fio beside itself.
Status bench_io_against_fio(const BenchIoOptions& options);

}  // namespace sluice::tools
