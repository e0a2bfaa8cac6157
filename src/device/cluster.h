// Machines that are not here, to plan for: what their devices can do by their data sheets, and how messages go between
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/profile.h"
#include "sluice/status.h"

namespace sluice {

/// A GPU by its data sheet, and which shares of that are reached.
struct ClusterDevice {
  std::string name;
  std::uint64_t memory_bytes = 0;
  double flops_bf16 = 0, flops_f32 = 0;
  double memory_bytes_per_second = 0;  ///< read and written together
  double link_bytes_per_second = 0;    ///< to the host and back, each way
  double efficiency = 0;               ///< of large multiplies
  double memory_efficiency = 0.9, link_efficiency = 0.8;
  /// Whether messages are staged in host memory, as with --transport staged; else they go from device to device.
  bool meets_in_host = false;
};
struct ClusterHost {
  std::uint64_t memory_bytes = 0;
  int cores = 0;
  double memory_bytes_per_second = 0;  ///< read and written together, by the data sheet
};
/// Of a machine, striped.
struct ClusterDrives {
  int count = 0;
  std::uint64_t bytes = 0;                                       ///< of one
  double read_bytes_per_second = 0, write_bytes_per_second = 0;  ///< of one
};

struct Cluster {
  std::string path;  ///< of its file
  int ranks_of_machine = 1;
  std::optional<MessageRates> messages_inside, messages_between;  ///< that are reached; both are there
  /// None: devices, hosts and drives are like this machine's.
  std::optional<ClusterDevice> device;
  ClusterHost host;
  std::optional<ClusterDrives> drives;
};

/// A file of --cluster: {"ranks_of_machine": 8, "messages_inside": {"latency_seconds": 1e-5, "gather_bytes_per_second":
/// 2e11, "reduce_bytes_per_second": 1e11}, "messages_between": {the same of a machine}}, and, for devices that are not
/// here, "device", "host" and "drives" with the names above. A device that src/device/published_peaks knows needs its
/// name alone. bad_request in one line for what is missing, no rate, or means nothing.
Result<Cluster> read_cluster(const std::string& path);

/// What is assumed of a machine with devices: all that its plans are predicted with. Nothing of it was measured.
HardwareProfile profile_of(const Cluster& cluster);
/// In a line, for people.
std::string assumed_text(const Cluster& cluster);

}  // namespace sluice
