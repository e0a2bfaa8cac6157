// Where the plans of a run have what steps hand to each other. The same for all kinds of plan and for all ranks of a
// stage, whose buffers are alike.
#pragma once

#include <vector>

#include "sluice/plan.h"

namespace sluice {

constexpr BufferId no_buffer = 0xffffffffu;

class StateTable {
 public:
  StateTable() = default;
  explicit StateTable(const StepPlan& plan);

  /// no_buffer where the plan has none of it.
  BufferId home(UnitId unit, StateKind kind) const { return at(homes_, index(unit, kind)); }
  BufferId mirror(UnitId unit, StateKind kind) const { return at(mirrors_, index(unit, kind)); }
  /// On the drive: the home if it lies there, else its mirror.
  BufferId kept(UnitId unit, StateKind kind) const { return at(kept_, index(unit, kind)); }
  BufferId resident(UnitId unit) const { return at(residents_, static_cast<std::size_t>(unit)); }
  BufferId rope() const { return rope_; }      ///< what rotary positions turn by, on a device with a memory of its own
  BufferId logits() const { return logits_; }  ///< of a decode plan

 private:
  static BufferId at(const std::vector<BufferId>& list, std::size_t i) { return i < list.size() ? list[i] : no_buffer; }
  static std::size_t index(UnitId unit, StateKind kind) {
    return static_cast<std::size_t>(unit) * state_names.size() + static_cast<std::size_t>(kind);
  }
  std::vector<BufferId> homes_, mirrors_, kept_;  ///< [index]
  std::vector<BufferId> residents_;               ///< [unit]
  BufferId rope_ = no_buffer, logits_ = no_buffer;
};

}  // namespace sluice
