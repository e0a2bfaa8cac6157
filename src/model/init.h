// Random initial weights: a pure function of (seed, tensor, index), independent of sharding.
#pragma once

#include <cstdint>
#include <span>

#include "src/model/split.h"

namespace sluice {

/// Fill out[i] = element `first + i` of the unit's flat buffer as fp32 (padding between tensors is zero).
void initial_weights(const UnitSpec& unit, std::uint64_t seed, std::uint64_t first, std::span<float> out);
/// The same of a rank's part of a unit that is cut over ranks: the elements of the whole.
void initial_weights(const SplitModel& split, RankId rank, UnitId unit, std::uint64_t seed, std::uint64_t first,
                     std::span<float> out);

}  // namespace sluice
