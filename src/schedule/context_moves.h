// Attention of slices of sequences (src/model/context-inl.h), of which each rank has one, or takes one after the other:
// its ops, and what ranks give each other between them, or where keys and values wait.
#pragma once

#include "src/model/workspaces.h"
#include "src/schedule/rank_moves.h"
#include "src/schedule/sublayer_ops.h"

namespace sluice {

class ContextMoves : RankMoves {
 public:
  ContextMoves(RankContext& context, const SublayerOps& ops)
      : RankMoves(context), ops_(ops), dims_(*work_.model, work_.shape, work_.dtype, *work_.kernels), saved_(dims_) {}

  /// Whether the unit's ops are these.
  bool has_ops_of(UnitId u) const { return work_.shape.cuts_sequences() && spec(u).kind == Sublayer::attention; }

  /// Something that an op touches.
  struct Operand {
    Part part;
    Role role;
  };
  /// x_in or normed -> x_out or sum. What is kept for the backward pass lies in `saved`, or, where that is not valid,
  /// in a buffer that ends with the last op. `keeps`: blocks of slices wait for the backward pass, else for later
  /// slices.
  void forward(UnitId u, int mb, const Operand& in, const Part& saved, const Operand& out, bool keeps = true);
  /// The same without its end, on the way back.
  void attend(UnitId u, int mb, const Operand& in, const Part& saved);
  /// x_in or normed, saved, d_out -> d_in or d_sum, and the gradient, which the first op meets so.
  void backward(UnitId u, int mb, const Operand& in, const Part& saved, const Part& d_out, const Operand& d_in,
                const Part& gradient, Mode mode);

 private:
  /// What qkv_backward begins with; `partial` in blocks alone.
  struct Gradients {
    Part partial, arrived;
  };
  bool is_ring() const { return work_.shape.ring; }
  bool in_slices() const { return work_.shape.slices > 1; }
  int slices() const { return work_.slices(); }
  int steps() const { return static_cast<int>(work_.shape.context); }
  Op& op(OpKind kind, UnitId u, int mb);
  std::string step_label(UnitId u, const char* what, int mb, int step) const;
  Op& step_op(OpKind kind, UnitId u, int mb, int step, const Part& saved, const Part& block, const Part& partial);
  Part next_block(UnitId u, int mb, int step, const Part& block);
  void project(UnitId u, int mb, const Operand& in, const Part& saved, const Part& block, const Part& leaving);
  void attend_over_ranks(UnitId u, int mb, const Operand& in, const Part& saved);
  void attend_in_ring(UnitId u, int mb, const Part& saved);
  void attend_in_slices(UnitId u, int mb, const Part& saved);
  Gradients core_backward(UnitId u, int mb, const Part& saved, const Part& d_heads);
  Gradients core_backward_in_ring(UnitId u, int mb, const Part& saved, const Part& d_heads);
  Gradients core_backward_in_slices(UnitId u, int mb, const Part& saved, const Part& d_heads);
  /// Of slices: blocks that the queries of one see; those of the next steps on the device; and away again.
  int blocks_seen(int mb) const { return 1 + static_cast<int>(dims_.earlier_blocks(mb % slices())); }
  void bring_blocks(UnitId u, int mb, int step, bool with_gradients);
  void leave_blocks(UnitId u, int mb, bool keeps);
  void leave_gradient(UnitId u, int mb);
  Part all_heads(const Part& saved) const { return kept(saved, dims_.in_blocks ? saved_.attended : saved_.returned); }
  Part kept(const Part& saved, const ContextSaved::Piece& piece) const { return saved.slice(piece.at, piece.bytes); }

  const SublayerOps& ops_;
  Dims dims_;
  ContextSaved saved_;
};

}  // namespace sluice
