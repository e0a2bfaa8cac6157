// Where sluice keeps what it can make again.
#pragma once

#include <string>

#include "sluice/status.h"

namespace sluice {

/// $XDG_CACHE_HOME/sluice, or ~/.cache/sluice (XDG Base Directory Specification). bad_request where neither is known.
Result<std::string> user_cache_directory();

}  // namespace sluice
