// Compute ops of one micro-batch, and the travels of activations.
#pragma once

#include "src/schedule/gradient_moves.h"
#include "src/schedule/part_moves.h"

namespace sluice {

class ActivationMoves : RankMoves {
 public:
  ActivationMoves(RankContext& context, GradientMoves& gradients);

  /// From another stage: what the unit's pass begins with.
  void receive_inputs(UnitId u, int mb, bool backward);
  /// To the device, behind all that this stage sends before: what is listed behind it may wait for it.
  void land_inputs(UnitId u, int mb, bool backward);
  void bring_inputs(UnitId u, int mb, bool backward);
  /// Forward, or again: `keeps` as the pass does.
  void forward(UnitId u, int mb, bool keeps);
  /// What backward, or its halves, read and is not there. Where backward makes it again itself, nothing.
  void recompute(UnitId u, int mb, bool for_halves);
  void backward(UnitId u, int mb);
  /// What it reads and leaves stays on the device for the second half.
  void backward_input(UnitId u, int mb);
  void backward_weight(UnitId u, int mb);
  void head(int mb);
  void evaluate_head(int mb);
  void decode_head();
  /// What the unit's pass has made, where another stage goes on with it.
  void send_outputs(UnitId u, int mb, bool backward);
  void park_outputs(UnitId u, int mb, bool backward);

 private:
  void make_outputs(UnitId u, int mb, bool keeps);
  void leave_input(UnitId u, int mb);
  void close_backward(UnitId u, int mb);
  bool has_core(UnitId u) const { return costs_[static_cast<std::size_t>(u)].core_bytes > 0; }
  Saved core_choice(UnitId u) const { return choice(u).core.value_or(choice(u).saved); }
  bool is_core_apart(UnitId u) const { return has_core(u) && core_choice(u) != choice(u).saved; }
  /// None: it is parked as it is.
  const ParkedLayout* layout_of_input(UnitId v) const;
  const ParkedLayout* layout_of_saved(UnitId u) const;
  const ParkedLayout* layout_of_core(UnitId u) const;
  /// In the order of compute: what was made and is to be parked, and what has come back.
  void pack_outputs(UnitId u, int mb);
  void unpack_inputs(UnitId u, int mb);
  Part saved_piece(UnitId u, int mb);
  bool parks_arrived_input(UnitId u, int mb);
  bool parks_output(UnitId u, int mb);
  void make_room_for_saved(UnitId u, int mb, bool rest, bool core, Life life);
  void split_saved(UnitId u, PerMicroBatch& m) const;
  void touch_saved(Op& op, UnitId u, int mb, Mode mode);
  void park_saved(UnitId u, int mb);
  bool is_cut() const { return work_.split != nullptr; }
  /// In chunks, so that it never lies in memory whole.
  bool backward_makes_saved(UnitId u) const {
    return !is_cut() && costs_[static_cast<std::size_t>(u)].backward_again_workspace_bytes > 0;
  }
  void load_tokens(int mb);
  bool reads_tokens(UnitId u) const;
  bool keeps_input(UnitId u) const;  ///< away from the device, for the backward pass
  bool travels(UnitId u) const;      ///< activations between passes do not stay on the device
  void touch_tokens(Op& op, UnitId u, int mb);
  void touch_parameters(Op& op, UnitId u);
  void touch_workspace(OpKind kind, UnitId u, Part& out);
  Op& compute(OpKind kind, UnitId u, int mb);
  std::int32_t cost_of(Sublayer sublayer, OpKind kind);

  GradientMoves& gradients_;
  SublayerOps ops_;
  ContextMoves context_;
  PartMoves part_;
  std::vector<SublayerCost> costs_;  ///< by unit
  struct Layouts {
    ParkedLayout input, saved, rest, core;
  };
  std::vector<Layouts> layouts_;                                         ///< by unit, where anything is parked in bits
  std::array<std::array<std::int32_t, op_names.size()>, 4> cost_index_;  ///< in the plan's cost keys, -1 not asked yet
};

}  // namespace sluice
