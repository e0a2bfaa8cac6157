// Shares of a bound, as every command and bench prints them.
#pragma once

#include <cstdio>
#include <string>

namespace sluice {

/// Nothing reaches more than its bound: where this is so, the bound was worked out from what was measured wrongly.
inline bool beats_bound(double share) { return share > 1; }

/// "0.83"; beyond 1 "1.20 (profile wrong)", or what else `bound` names.
inline std::string format_efficiency(double share, const char* bound = "profile") {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", share);
  return beats_bound(share) ? std::string(text) + " (" + bound + " wrong)" : text;
}

}  // namespace sluice
