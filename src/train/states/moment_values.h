// Moments as numbers, where their format changes: sluice/moments.h says what the formats are. Rounded to nearest, since
// what is rounded once is not an average that could freeze.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/moments.h"
#include "sluice/plan.h"

namespace sluice {

/// Of one moment (exp_avg or exp_avg_sq) with 8 bits.
float decoded_moment(StateKind kind, std::uint8_t code, float scale);
/// Up to 256 elements, their codes and their scale.
float encode_moments(StateKind kind, std::span<const float> values, std::uint8_t* codes);

}  // namespace sluice
