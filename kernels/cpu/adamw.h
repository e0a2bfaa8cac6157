// Inner side of sluice/adamw.h: what the loops take, and where they are.
#pragma once

#include <cstdint>

#include "sluice/adamw.h"

namespace sluice::kernels {

/// The step's scalars as the loops want them, each rounded once from double.
struct AdamwConstants {
  float gradient_scale, one_minus_beta1, beta1, beta2, one_minus_beta2;
  float gradient_to_m;       ///< (1 - beta1) gradient_scale
  float gradient_to_root_v;  ///< sqrt(1 - beta2) gradient_scale
  float root_correction2;    ///< 1 / sqrt(1 - beta2^step)
  float eps, keep;           ///< keep: 1 - lr * weight_decay
  float minus_rate;          ///< -lr / (1 - beta1^step)
  std::uint64_t rounding_key;
};

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
