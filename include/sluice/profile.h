// What a machine can do, measured: the input of `simulate` and of every bound that is printed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/plan.h"

namespace sluice {

constexpr std::uint32_t profile_schema_version = 5;

/// A drive, or several with one swap file striped over them: the requests that suit it and what it does with those.
struct DriveProfile {
  std::string backend = "auto";  ///< as --io takes it
  std::uint32_t block_bytes = drive_block_bytes;
  std::uint32_t depth = drive_window;  ///< requests in flight per drive, each of reads and of writes
  std::vector<double> stripe_weights;  ///< of several: relative bandwidths
  double read_bytes_per_second = 1e9;
  double write_bytes_per_second = 1e9;
  double mixed_bytes_per_second = 1e9;  ///< reads plus writes when half and half
  double request_seconds = 0;           ///< that one more request costs with many in flight
  double read_latency_seconds = 0;      ///< of one request alone, beyond its bytes at the full rate
  double write_latency_seconds = 0;
  double sync_seconds_per_byte = 0;  ///< that fdatasync takes, by what was written since the last one
};

/// A problem that several kernels of a library solve, and the one that was chosen, as that library's caller writes
/// them.
using KernelChoices = std::map<std::string, std::string>;

/// A GPU: it computes beside the host, from a memory of its own, and its copies take no core.
struct DeviceProfile {
  double gemm_flops_f32 = 1e13;  ///< best algorithm and shape of those tried
  double gemm_flops_bf16 = 1e14;
  double memory_bytes_per_second = 1e12;  ///< of a copy within the device
  double adamw_parameters_per_second = 1e10;
  double h2d_bytes_per_second = 1e10;  ///< between locked memory and the device, alone
  double d2h_bytes_per_second = 1e10;
  double both_bytes_per_second = 2e10;  ///< the sum of both while both copy
  double op_overhead_seconds = 1e-5;    ///< of one more op in a queue
  // Of the host, whose cores have less to do beside a GPU.
  int optimizer_threads = 1;
  double host_adamw_parameters_per_second = 1e9;
  double host_norm_bytes_per_second = 1e10;
  double handoff_seconds = 0;
  /// Which of several kernels does what, by cost key: those that were quickest when the op was measured. Bits depend on
  /// them, so that runs keep what they began with.
  std::map<std::string, KernelChoices> choices;
};

/// Collectives between ranks that share no memory.
struct MessageRates {
  double latency_seconds = 20e-6;        ///< of a collective of few bytes
  double gather_bytes_per_second = 2e9;  ///< that arrive at a rank; between machines, at all ranks of one together
  double reduce_bytes_per_second = 1e9;  ///< the same of sums, with the adding
};

/// What a step does that saves: its states go to the drive that has them, or elsewhere at a rate of its own, or
/// nowhere.
struct Saving {
  bool to_drive = true;
  bool shares_blocks = false;     ///< with the swap file: nothing is moved
  double bytes_per_second = 1e9;  ///< elsewhere, of all ranks of a machine together
  int replicas = 1;               ///< that share the writing
};

/// Rates of one machine. Bytes per second count bytes moved once (a copy of n bytes is n).
struct HardwareProfile {
  std::uint32_t schema_version = profile_schema_version;
  std::string machine;               ///< CPU model and kernel, to notice that a profile is another machine's
  int ranks = 1;                     ///< that share cores, memory, drive and the CPU's links: the run's, not the file's
  int ranks_of_device = 1;           ///< that share a GPU and its links: the run's, not the file's
  bool ranks_apart = false;          ///< they share no memory: the run's, not the file's
  bool messages_of_devices = false;  ///< they go from GPU to GPU and ask nothing of the host: the run's, not the file's
  std::optional<Saving> saving;      ///< of the steps that are predicted; none: they do not save. Not the file's
  /// Between ranks of this machine, and between machines. None: never measured, and guessed.
  std::optional<MessageRates> messages_inside, messages_between;
  int cores = 1;
  int compute_threads = 1;
  int optimizer_threads = 1;
  double gemm_flops_f32 = 1e11;  ///< best layout of the matmuls tried, all compute threads
  double gemm_flops_bf16 = 1e11;
  double peak_flops_f32 = 0;  ///< of the chip, by its instructions and measured clock; 0 unknown
  double peak_flops_bf16 = 0;
  double h2d_bytes_per_second = 1e10;
  double d2h_bytes_per_second = 1e10;
  double memory_bytes_per_second = 2e10;  ///< DRAM, in-place stream
  double adamw_parameters_per_second = 1e9;
  double norm_bytes_per_second = 1e10;  ///< grad_norm
  double checksum_bytes_per_second = 1e10;
  double op_overhead_seconds = 3e-6;
  double handoff_seconds = 0;  ///< from the end of an op until a lane that slept for it works
  DriveProfile drive;          ///< the one in use: a member of `drives`, or a guess
  /// By what drive_key (src/device/profile.h) makes of directories.
  std::map<std::string, DriveProfile> drives;
  std::optional<DeviceProfile> device;           ///< the GPU in use: a member of `devices`; none: the CPU is the device
  std::map<std::string, DeviceProfile> devices;  ///< by Device::kind (src/device/device.h)
  /// Seconds that one compute op takes alone, by cost key ("attention.backward b1 s512 h768 ... bf16 t2").
  std::map<std::string, double> op_seconds;
  /// Runs on the CPU measure those of their ops that it lacks; else these are predicted from rates, as by `plan` for a
  /// machine that is not here. Of a GPU they do always: that is how kernels are chosen.
  bool measures_ops = true;
};

}  // namespace sluice
