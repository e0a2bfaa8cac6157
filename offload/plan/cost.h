// What one op asks of the machine when it runs alone: seconds, and work on resources that lanes share.
#pragma once

#include <array>
#include <vector>

#include "sluice/plan.h"
#include "sluice/profile.h"

namespace sluice::planning {

/// `other`: written to a drive that is not the plan's (Saving). `flush`: what fdatasync waits for, which has the drive
/// nearly to itself.
enum class DriveUse : std::uint8_t { none, read, write, other, flush };

struct OpCost {
  double seconds = 0;         ///< alone
  double best_seconds = 0;    ///< of compute ops: FLOP at the best matmul rate, or `seconds` if less; else 0
  double core_seconds = 0;    ///< threads x seconds that they are busy
  double threads = 1;         ///< that do the work
  double memory_seconds = 0;  ///< DRAM traffic at the full rate; (read + written) / 2 counts, as for a copy
  double drive_bytes = 0;
  DriveUse drive = DriveUse::none;
  double latency_seconds = 0;  ///< after the transfer, while the lane is free for the next one (windowed lanes)
  double flying_requests = 0;  ///< that have not landed when the transfer ends
  double link_down_seconds = 0, link_up_seconds = 0;  ///< on the way to and from the device
  double network_seconds = 0;                         ///< of messages, at the full rate
  std::int32_t group = -1;                            ///< whose messages they are
};
/// As a group: all that the collectives of a device are, one after the other. No group has that number.
constexpr std::int32_t device_queue = 64;

/// What the host does for steps, alone or beside a GPU.
struct HostRates {
  int optimizer_threads;
  double adamw_parameters_per_second, norm_bytes_per_second, handoff_seconds;
};
HostRates host_rates(const HardwareProfile& hw);

/// Costs of a plan's ops; measured seconds are looked up once per cost key.
class CostModel {
 public:
  CostModel(const StepPlan& plan, const HardwareProfile& hw);
  OpCost cost(const Op& op) const;

 private:
  double compute_seconds(const Op& op) const;
  double members_here(AxisSet axes) const;
  struct Sent {
    double inside = 0, between = 0;
  };
  Sent sent(const Op& op) const;
  double message_seconds(const Op& op, bool with_latency) const;
  double device_collective_seconds(const Op& op, bool with_latency) const;
  double message_to_peer_seconds(const Op& op, bool with_latency) const;
  double copy_rate(bool down) const;
  double flops(const Op& op) const;

  const StepPlan& plan_;
  const HardwareProfile& hw_;
  HostRates host_;
  std::uint64_t written_bytes_ = 0;  ///< to the drive, of an iteration
  std::vector<double> measured_;     ///< per cost key, 0 unknown
  std::vector<bool> bf16_;           ///< per cost key
};

/// Bytes per second that a drive reads and writes while it does both: together the mixed rate, in halves unless one
/// side can not use its half.
struct MixedRates {
  double read, write;
};
MixedRates mixed_rates(const HardwareProfile& hw);

/// A GPU has a link of its own, host memory has one for all.
inline int ranks_of_link(const HardwareProfile& hw) { return hw.device ? hw.ranks_of_device : hw.ranks; }

/// A flush has the drive nearly to itself: other requests go at one part of so many. From a virtual drive 7 to 260 MB/s
/// arrived beside a sync, most often below 60, and 800 at other times.
constexpr double behind_flush = 20;

/// Least seconds that a drive needs for these bytes, reading and writing at once where that is quicker.
double drive_seconds(const HardwareProfile& hw, double read_bytes, double write_bytes);

bool is_compute(OpKind kind);
/// Whose time is that of its bytes.
bool is_streamed(OpKind kind);

/// Whether ops of such a lane run in queues of a GPU.
bool runs_on_device(const Lane& lane, const HardwareProfile& hw);

/// How many times longer a copy takes while the other direction copies too; 1 where links are the CPU's own copies.
double both_ways_slowdown(const HardwareProfile& hw);

/// Bytes per second of both directions of a device's link together: taking turns, they reach what the faster does
/// alone.
double both_ways_rate(const DeviceProfile& device);

}  // namespace sluice::planning
