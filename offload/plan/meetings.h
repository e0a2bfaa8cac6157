// Which ops of ranks that run side by side wait for each other (internal to the simulation).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sluice/plan.h"

namespace sluice::planning {

/// Where ranks meet, or one sends what another receives: nobody goes on before all are there.
class Meetings {
 public:
  struct Place {
    std::size_t member = 0;
    OpId op = no_op;
  };
  /// Of ranks that run side by side. What all of a meeting's ranks do alike needs nobody else.
  explicit Meetings(std::span<const StepPlan* const> members);

  static constexpr std::size_t none = ~std::size_t{0};
  std::size_t size() const { return all_.size(); }
  std::size_t of(std::size_t member, OpId op) const { return by_op_[member].empty() ? none : by_op_[member][op]; }
  std::span<const Place> places(std::size_t meeting) const { return all_[meeting]; }

 private:
  std::vector<std::vector<Place>> all_;
  std::vector<std::vector<std::size_t>> by_op_;  ///< [member][op]
};

}  // namespace sluice::planning
