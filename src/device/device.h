// What computes a run: the CPU itself, or a GPU with a memory of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "offload/run/executor.h"
#include "offload/run/memory.h"
#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/device/bind_sublayer.h"
#include "src/device/device_bench.h"
#include "src/model/kernel_sizes.h"
#include "src/model/sublayer.h"

namespace sluice {

/// Memory for the device arenas of all ranks, and a backend for each. Outlives both.
class Device {
 public:
  /// "cpu", "cuda" (the first GPU) or "cuda:N". bad_request in one line for other names, and for a GPU that is not
  /// there or can not be used by this program.
  static Result<std::unique_ptr<Device>> open(const std::string& name);
  virtual ~Device() = default;

  virtual DeviceMemory& memory() = 0;
  /// `model` and the tables outlive it, which lie in the device's memory.
  virtual Result<std::unique_ptr<ComputeBackend>> make_backend(const ModelSpec& model, const RopeView& rope,
                                                               const SublayerOptions& options) = 0;
  /// For one rank that has the device to itself. bad_request where there is no such thing as NCCL here.
  virtual Result<std::unique_ptr<DeviceCollectives>> make_collectives() {
    return bad_request("the CPU's memory is the host's, where ranks meet; leave --transport out");
  }
  /// `threads`: of the CPU. Choices that were made before are kept, others are made by timing.
  virtual Result<std::unique_ptr<DeviceBench>> make_bench(int threads, const KernelChoices& made) = 0;

  /// What profiles know a GPU by, alike for all of a kind: "NVIDIA H200"; empty for the CPU.
  virtual std::string kind() const = 0;
  virtual std::string description() const = 0;  ///< for people
  /// That it is next to; -1 where that is all of them, or not known.
  virtual int numa_node() const { return -1; }
  /// What may be had of a memory of its own; 0 where the device is the host's.
  virtual Result<std::uint64_t> free_bytes() const = 0;
};

/// How many devices a name is of: of "cuda" all GPUs, round which the ranks of a machine go; of others one. bad_request
/// as above.
Result<int> count_devices(const std::string& name);
/// bad_request in one line where ranks can not meet in the memory of devices: no NCCL, or one that is too old.
Status check_device_collectives();
/// What tells the GPUs that this process is shown from all others of the machine; none where there are none.
std::vector<std::string> visible_gpus();
/// Of those, the one of a rank, by its place among the ranks of its machine.
std::string device_of_rank(const std::string& name, int devices, int place);

/// Of the device of that name, which need not be there: a plan can be made for it anywhere. bad_request as above.
Result<const KernelSizes*> kernel_sizes_of(const std::string& name);

}  // namespace sluice
