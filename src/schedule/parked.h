// How activations lie where they wait away from the device: as they are, or values in blocks of few bits, and behind
// these what is no value.
#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/schedule.h"

namespace sluice {

struct ParkedLayout {
  /// Neighbours of one dtype: bytes of the activation, and of their codes and scales in a packed buffer.
  struct Values {
    SavedPiece of, packed;
    std::int64_t numel = 0;
  };
  std::vector<Values> values;     ///< in blocks
  std::vector<SavedPiece> exact;  ///< of the activation, what travels as it is, behind all that is packed
  std::uint64_t whole_bytes = 0;  ///< of the activation
  std::uint64_t packed_bytes = 0;
  std::uint64_t bytes = 0;  ///< that travel
};

/// Which part of what a sublayer saves: all, what attention saves without its core, or that.
enum class SavedPart : std::uint8_t { all, rest, core };

ParkedLayout parked_input(const Workload& workload, const SublayerCost& cost);
ParkedLayout parked_saved(const Workload& workload, const SublayerCost& cost, SavedPart part);

/// Whether a unit's input may wait in few bits: not where the pass forward goes on with what was parked, so that losses
/// are those of exact activations. `travels`: it leaves the device on its way to the unit.
inline bool parks_input_in_bits(const Workload& workload, bool travels) {
  return workload.activation_dtype != ActivationDtype::exact && !travels;
}

}  // namespace sluice
