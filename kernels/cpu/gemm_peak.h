// The chip's peaks by its instructions: what the rates of gemm are held against.
#pragma once

#include <cstdint>

namespace sluice::kernels {

/// Issues chains of fused multiply-adds on the widest registers, on the calling thread alone, and touches no memory.
/// Returns the FLOP done; the caller takes the time.
double multiply_add_burst(std::int64_t rounds);

/// The same on AMX tiles, for some tenths of a millisecond; 0 where the CPU has none.
double tile_multiply_burst();

}  // namespace sluice::kernels
