// Inner side of sluice/adamw.h: what the loops take, and where they are.
#pragma once

#include <cstdint>

#include "kernels/adamw_constants.h"
#include "sluice/adamw.h"

namespace sluice::kernels {

/// One pass over the range; the number of diverged parameters.
using AdamwLoop = std::uint64_t (*)(const AdamwConstants&, const AdamwRange&);

/// Loops of one SIMD target for one format of moments, by dtypes: [parameter][gradient], f32 before bf16.
struct AdamwLoops {
  AdamwLoop at[2][2];
};

const AdamwLoops& adamw_loops_f32();   ///< adamw_elements.cpp
const AdamwLoops& adamw_loops_bf16();  ///< adamw_elements.cpp
const AdamwLoops& adamw_loops_int8();  ///< adamw_blocks.cpp

}  // namespace sluice::kernels
