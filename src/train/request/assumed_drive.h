// The drive of a plan for another machine: what can not be measured here is taken for a modest NVMe drive.
#pragma once

#include <cstddef>

#include "sluice/profile.h"

namespace sluice {

/// The rates that a profile has before a drive is measured, of `count` of them striped.
inline DriveProfile assumed_drive(std::size_t count) {
  DriveProfile drive;
  const auto n = static_cast<double>(count);
  drive.read_bytes_per_second *= n;
  drive.write_bytes_per_second *= n;
  drive.mixed_bytes_per_second *= n;
  return drive;
}

}  // namespace sluice
