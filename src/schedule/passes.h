// In which order a step passes over the units of a model: a pure function, and all that the program's order follows
// from.
#pragma once

#include <vector>

#include "src/schedule/stages.h"

namespace sluice {

/// A backward pass may come in two halves: to inputs, and later to parameters. That over the embedding is one. `again`:
/// forward once more, on the way back, for inputs that nobody kept.
enum class Phase : std::uint8_t { forward, head, backward, backward_input, backward_weight, again };
constexpr std::size_t phase_count = 6;
constexpr bool goes_back(Phase phase) { return phase == Phase::backward || phase == Phase::backward_input; }
/// Of parameters.
constexpr bool makes_gradients(Phase phase) {
  return phase == Phase::head || phase == Phase::backward || phase == Phase::backward_weight;
}

/// All micro-batches of a group through one unit in one direction; through the head in both, where that is trained.
struct Pass {
  Phase phase;
  UnitId unit;
  MicroBatchGroup group;
  std::size_t turn = 0;  ///< that it is of
  /// Forward or again: it is the last before the backward pass over the unit. What it saves, and the next unit's input,
  /// are kept for their backward passes.
  bool keeps = true;
  bool is_first = false, is_last = false;  ///< of the unit's passes in this direction

  /// The embedding's backward pass needs none, and neither does a second half.
  bool reads_parameters() const { return phase != Phase::backward_weight && (phase != Phase::backward || unit != 0); }
  /// What it leaves to the next pass: gradients of its input, or outputs.
  bool makes_input_gradients() const { return phase != Phase::forward && phase != Phase::again; }
  /// Of a step's first over a unit, ahead of which it may be updated.
  bool goes_forward() const { return phase == Phase::forward || phase == Phase::head; }
};

struct PassOrder {
  std::vector<Pass> passes;
  /// The first pass of each turn: of a group through all units of a stage's chunk in one direction. What comes from
  /// other stages comes to it.
  std::vector<std::size_t> turns;
  /// By turn: those for which a stage begins to listen ahead of its work, to other stages and, with a tied matrix whose
  /// head is elsewhere, to the head. It listens one turn ahead, and no later than behind its last pass that comes ahead
  /// of the sender's in an order that all stages have in common. So nobody waits for a listener who waits for somebody
  /// else to listen, even where bytes of what was sent are used again: in that order all can be done one after the
  /// other.
  std::vector<std::vector<std::size_t>> listens, listens_to_head;
  std::vector<std::vector<std::size_t>> readers;  ///< by unit: the passes that read its parameters
  /// The order in which units are updated: those whose update waits for the forward pass, and the others.
  std::vector<UnitId> updates_ahead, updates_back;
};

/// Of a plan of this kind (train, evaluate and decode), of the workload's rank. One stage has each group of
/// micro-batches go through all units, and in training back again, before the next one does; several go as their
/// pipeline's order says. The head is passed on the way forward.
///
/// On the way back inputs of UnitChoice::sweep above 0 are made again: between two inputs that are there, a sweep
/// forward from the first keeps those of the next number; then the pieces between them are gone back over, the last
/// one first, each in the same way. So any schedule is there that keeps what it has made until it is used (persistent
/// ones, arXiv 1911.13214): square root (1604.06174), Revolve, and what is optimal of them.
PassOrder order_passes(PlanKind kind, const Workload& workload, const Schedule& schedule);

}  // namespace sluice
