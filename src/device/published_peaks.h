// What makers of GPUs say their chips multiply at most, dense, with fp32 sums: what MFU is a share of.
#pragma once

#include <string_view>

#include "sluice/dtype.h"

namespace sluice {

/// FLOP per second by the data sheet of the device of this kind (Device::kind); 0 where it is not known here. bf16 on
/// tensor cores, fp32 without them.
double published_peak_flops(std::string_view kind, Dtype dtype);

}  // namespace sluice
