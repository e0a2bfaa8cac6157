// The time, where only differences matter.
#pragma once

#include <chrono>

namespace sluice {

/// Seconds of a clock that only goes forward.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sluice
