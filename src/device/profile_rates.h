// Some or all rates of a profile measured, again where others use the machine meanwhile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sluice/profile.h"
#include "src/device/doubts.h"
#include "src/device/profile.h"

namespace sluice {

/// Names of the rates that the profile of every machine has, in the order in which they are measured.
const std::vector<std::string>& rate_names();

/// Measures the rates that `chosen` names, with the profile's threads, and notes in `doubts` which can be relied on.
/// Sets the calling thread's OpenMP team. `clock` null: the system's.
Status measure_rates(HardwareProfile& profile, const std::function<bool(const std::string&)>& chosen, Doubts& doubts,
                     CpuClock* clock = nullptr, const std::function<void(const std::string&)>& progress = {});

/// measure_profile (profile.h), that also tells what was disturbed.
Result<HardwareProfile> measure_profile(const MeasureOptions& options, Doubts& doubts);

}  // namespace sluice
