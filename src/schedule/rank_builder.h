// The moves that a schedule is composed of, by what they move. Each method appends ops in program order; the driver
// (build.cpp) calls them.
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
  void collect_losses();
  void control();
  void step_end();
  void commit();

 private:
  void declare_persistent();
  void declare_home(UnitId u);
  Part declare_state(UnitId u, StateKind k, Place place);
};

}  // namespace sluice
