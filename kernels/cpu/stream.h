// The plainest in-place pass over memory: what the DRAM gives to a kernel that reads and writes every byte once.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::kernels {

/// x[i] = -x[i], in the calling thread: reads and writes x.size_bytes() each. Two calls leave x as it was.
void stream_update(std::span<float> x);

}  // namespace sluice::kernels
