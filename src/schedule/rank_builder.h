// The moves that a schedule is composed of, by what they move. Each method appends ops in program order; the driver
// (driver.h) calls them.
#pragma once

#include "src/schedule/activation_moves.h"
#include "src/schedule/gradient_moves.h"
#include "src/schedule/optimizer_moves.h"
#include "src/schedule/parameter_moves.h"

namespace sluice {

class RankBuilder : RankMoves {
 public:
  explicit RankBuilder(RankContext& context);

  ParameterMoves parameters;
  OptimizerMoves optimizer;
  GradientMoves gradients;
  ActivationMoves activations;

  // step control
  /// Where stages update as they go back and do not meet before they do: none overwrites a slot that another one may
  /// still have to go back to.
  void wait_for_commits();
  void collect_losses();
  void control();
  void step_end();
  void commit();

 private:
  void declare_persistent();
  void declare_home(UnitId u);
  void declare_carried_gradients();
  bool has_waiting_gradient(UnitId u) const { return schedule_.has_waiting_gradient(u) && !work_.inference; }
  Part declare_state(UnitId u, StateKind k, Place place);
};

}  // namespace sluice
