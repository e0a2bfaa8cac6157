// What makers of GPUs say their chips multiply at most, dense, with fp32 sums: what MFU is a share of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/dtype.h"

namespace sluice {

/// FLOP per second by the data sheet of the device of this kind (Device::kind); 0 where it is not known here. bf16 on
/// tensor cores, fp32 without them.
double published_peak_flops(std::string_view kind, Dtype dtype);

/// The rest of a data sheet, and what others have measured of it.
struct PublishedDevice {
  std::uint64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;  ///< read and written together
  double fabric_bytes_per_second = 0;  ///< to other devices of a machine, each way
  double host_bytes_per_second = 0;    ///< each way
  double multiply_efficiency = 0;      ///< share of the peak that the best shapes reach in bf16
};
/// Of a name as published_device_names has it; none for others.
std::optional<PublishedDevice> published_device(std::string_view name);
/// "A100 40GB, A100 80GB, ...": for people.
std::string published_device_names();

}  // namespace sluice
