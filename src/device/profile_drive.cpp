// What the planner wants to know of drives, from streams over temporary files.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "src/device/drive_bench.h"
#include "src/device/profile_measure.h"

namespace sluice {
namespace {

constexpr std::uint64_t small_bytes = 64u << 10;
/// Bandwidths closer than this are taken as equal.
constexpr double weight_tolerance = 0.1;

/// "/dev/nvme0n1p2 ext4" by /proc/self/mountinfo; for what is not there, its numbers.
std::string device_of(const std::string& directory) {
  struct stat st {};
  if (stat(directory.empty() ? "." : directory.c_str(), &st) != 0) return directory;
  const std::string numbers = fmt::format("{}:{}", major(st.st_dev), minor(st.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, field, type, source;
    fields >> id >> parent >> device;
    if (device != numbers) continue;
    while (fields >> field && field != "-") {
    }
    if (fields >> type >> source) return source.append(" ").append(type);
  }
  return "device " + numbers;
}

Result<double> mixed_rate(const std::string& directory, const DriveOptions& options) {
  SLUICE_ASSIGN(DriveBench bench, DriveBench::create({{directory}, {}, options.file_bytes / 2, nullptr}));
  SLUICE_TRY(bench.fill({}));
  StreamSetting setting = options.setting;
  setting.mode = StreamMode::mixed;
  SLUICE_ASSIGN(const StreamResult result, bench.run(setting, options.seconds / 2));
  return result.bytes_per_second();
}

}  // namespace

std::string drive_key(std::span<const std::string> directories) {
  std::string key;
  for (const std::string& directory : directories) key += (key.empty() ? "" : " + ") + device_of(directory);
  return key;
}

Result<std::vector<double>> measure_stripe_weights(const DriveOptions& options) {
  std::vector<double> rates;
  for (const std::string& directory : options.directories) {
    if (options.directories.size() == 1) return rates;
    SLUICE_ASSIGN(const double rate, mixed_rate(directory, options));
    rates.push_back(rate);
  }
  // Directories on one drive share it, and drives of one model differ by noise.
  const double mean = std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
  const bool alike = std::all_of(rates.begin(), rates.end(),
                                 [&](double rate) { return std::abs(rate - mean) < weight_tolerance * mean; });
  for (double& rate : rates) rate = alike ? 1 : rate / mean;
  return rates;
}

Result<DriveProfile> measure_drive(const DriveOptions& options) {
  DriveProfile p;
  p.backend = io_backend_names[static_cast<std::size_t>(options.setting.backend)];
  p.block_bytes = static_cast<std::uint32_t>(options.setting.block_bytes);
  p.depth = static_cast<std::uint32_t>(options.setting.depth);
  SLUICE_ASSIGN(p.stripe_weights, measure_stripe_weights(options));
  SLUICE_ASSIGN(DriveBench bench,
                DriveBench::create({options.directories, p.stripe_weights, options.file_bytes, nullptr}));
  SLUICE_TRY(bench.fill({}));
  const auto stream = [&](StreamMode mode) {
    StreamSetting setting = options.setting;
    setting.mode = mode;
    return bench.run(setting, options.seconds);
  };
  SLUICE_ASSIGN(const StreamResult written, stream(StreamMode::write));
  SLUICE_ASSIGN(const StreamResult read, stream(StreamMode::read));
  // As steps do: reads and writes, then a sync. Of a drive that has been written to for a while that takes longer than
  // at first, and now this long, now that.
  constexpr int syncs = 5;
  StreamSetting both = options.setting;
  both.mode = StreamMode::mixed;
  StreamResult mixed;
  for (int i = 0; i < syncs; ++i) {
    SLUICE_ASSIGN(const StreamResult round, bench.run(both, options.seconds / 4));
    mixed.seconds += round.seconds;
    mixed.read_bytes += round.read_bytes;
    mixed.write_bytes += round.write_bytes;
    mixed.sync_seconds += round.sync_seconds;
  }
  p.write_bytes_per_second = written.bytes_per_second();
  p.read_bytes_per_second = read.bytes_per_second();
  p.mixed_bytes_per_second = mixed.bytes_per_second();
  p.sync_seconds_per_byte = mixed.sync_seconds / static_cast<double>(std::max<std::uint64_t>(1, mixed.write_bytes));
  // Small requests show what a request costs beside its bytes, alone and in a full window.
  const auto seconds_of_small = [&](StreamMode mode, std::size_t depth) -> Result<double> {
    StreamSetting setting = options.setting;
    setting.mode = mode;
    setting.block_bytes = small_bytes;
    setting.depth = depth;
    SLUICE_ASSIGN(const StreamResult result, bench.run(setting, options.seconds / 4));
    return 1 / result.iops();
  };
  const auto beyond = [](double seconds, double bytes_per_second) {
    return std::max(0.0, seconds - small_bytes / bytes_per_second);
  };
  SLUICE_ASSIGN(const double dense, seconds_of_small(StreamMode::read, options.setting.depth));
  SLUICE_ASSIGN(const double read_alone, seconds_of_small(StreamMode::read, 1));
  SLUICE_ASSIGN(const double write_alone, seconds_of_small(StreamMode::write, 1));
  p.request_seconds = beyond(dense, p.read_bytes_per_second);
  p.read_latency_seconds = std::max(0.0, beyond(read_alone, p.read_bytes_per_second) - p.request_seconds);
  p.write_latency_seconds = std::max(0.0, beyond(write_alone, p.write_bytes_per_second) - p.request_seconds);
  return p;
}

}  // namespace sluice
