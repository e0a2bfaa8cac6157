// Calls of operator new in this test program so far, by any thread.
#pragma once

#include <cstdint>

namespace sluice::test {

std::uint64_t allocations();

}  // namespace sluice::test
