// HardwareProfile on disk, and how it is measured. JSON with a schema version, one object.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "sluice/profile.h"
#include "sluice/status.h"

namespace sluice {

/// Of a profile's file: a larger one is none.
constexpr std::uint64_t largest_profile_bytes = 64u << 20;

/// "AMD EPYC 7763, 2 cores, Linux 6.1.0-18-amd64": a profile is worth something on the machine that it names.
std::string machine_id();

/// profile.json in the user's cache. bad_request where that is not known.
Result<std::string> default_profile_path();

/// Errors: bad_request where the file is missing, is not a profile, has another schema version, or holds a rate that is
/// not a positive finite number. The machine is not compared: see profile_is_of_this_machine.
Result<HardwareProfile> load_profile(const std::string& path);
/// The same from the text of a file, and what such a file has.
Result<HardwareProfile> profile_from_text(const std::string& text);
std::string to_text(const HardwareProfile& profile);
/// Written atomically; folders on the way are made. Numbers read back exactly.
Status save_profile(const std::string& path, const HardwareProfile& profile);

inline bool profile_is_of_this_machine(const HardwareProfile& profile) { return profile.machine == machine_id(); }

/// Names the drives under these directories, in the order of the stripes: "/dev/nvme0n1p2 ext4 + /dev/nvme1n1 xfs".
std::string drive_key(std::span<const std::string> directories);

/// Let the profile's `drive` be that of these directories. False, and unchanged, if it was never measured.
bool select_drive(HardwareProfile& profile, std::span<const std::string> directories);

/// Let the profile's `device` be that of this kind (Device::kind), none for the CPU's. False if it was never measured.
bool select_device(HardwareProfile& profile, const std::string& kind);

struct MeasureOptions {
  int compute_threads = 0;  ///< 0: all cores that this process may use
  int optimizer_threads = 0;
  std::function<void(const std::string&)> progress;  ///< told what is measured next
};

/// Measure everything but drives (measure_drive) and op_seconds (calibrate.h): about 15 seconds. Sets the calling
/// thread's OpenMP team.
Result<HardwareProfile> measure_profile(const MeasureOptions& options);

}  // namespace sluice
