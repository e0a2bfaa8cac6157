// How much room there is where drives are, and how much of it measuring them may take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/status.h"

namespace sluice {

/// For stripes of one size: directories on one file system share its room. bad_request for one that can not be asked.
Result<std::uint64_t> free_space(const std::vector<std::string>& directories);

/// Of a file to measure them with: large beside caches and small beside the room that there is.
Result<std::uint64_t> measuring_bytes(const std::vector<std::string>& directories);

}  // namespace sluice
