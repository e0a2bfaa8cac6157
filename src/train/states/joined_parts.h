// A model whose sublayers were cut over ranks (src/model/split.h), as one again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sluice/status.h"
#include "src/model/split.h"

namespace sluice {

/// Takes each unit's parts piece by piece, the units one after the other, and gives each unit's flat buffer out when
/// all of it is there. Keeps one unit in memory.
class JoinedParts {
 public:
  using Visit = std::function<Status(UnitId unit, std::span<const std::byte> data)>;
  /// `split` and `whole` outlive it. `visit` gets the whole of a unit, padding between tensors zero.
  JoinedParts(const SplitModel& split, const ModelSpec& whole, std::uint64_t element_bytes, Visit visit)
      : split_(split), whole_(whole), element_bytes_(element_bytes), visit_(std::move(visit)) {}

  /// Elements from `first` on of a rank's part of a unit.
  Status add(UnitId unit, RankId rank, std::uint64_t first, std::span<const std::byte> data);

 private:
  const SplitModel& split_;
  const ModelSpec& whole_;
  std::uint64_t element_bytes_;
  Visit visit_;
  std::vector<std::byte> unit_;
  std::uint64_t missing_ = 0;  ///< elements of the current unit's parts
};

}  // namespace sluice
