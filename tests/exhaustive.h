// How much of what can be tested is.
#pragma once

#include <cstdlib>

namespace sluice::test {

/// SLUICE_EXHAUSTIVE is set: a test that has a sample of its cases has all of them.
inline bool is_exhaustive() { return std::getenv("SLUICE_EXHAUSTIVE") != nullptr; }

}  // namespace sluice::test
