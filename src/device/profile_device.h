// The rates of a GPU, for the profile of a machine.
#pragma once

#include "sluice/profile.h"
#include "sluice/status.h"
#include "src/device/device_bench.h"

namespace sluice {

/// Sizes of what is measured: large beside caches and small beside the memory of `memory_bytes`.
struct DeviceSizes {
  explicit DeviceSizes(std::uint64_t memory_bytes);
  std::uint64_t copy_bytes;  ///< of one copy
  std::int64_t gemm;         ///< rows and columns of square matrices
  std::int64_t adamw_numel;
};

/// Some seconds, of the host too, whose compute threads are the optimizer's then. Quickest of several passes each,
/// since what disturbs only ever makes slower.
Result<DeviceProfile> measure_device(DeviceBench& bench, const DeviceSizes& sizes);

}  // namespace sluice
