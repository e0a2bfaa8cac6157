// Sublayers that are cut over ranks (src/model/split.h): their ops, and what ranks give each other between them.
#pragma once

#include <utility>

#include "src/model/workspaces.h"
#include "src/schedule/context_moves.h"
#include "src/schedule/gradient_moves.h"

namespace sluice {

class PartMoves : RankMoves {
 public:
  PartMoves(RankContext& context, GradientMoves& gradients, const SublayerOps& ops, ContextMoves& context_moves)
      : RankMoves(context),
        gradients_(gradients),
        ops_(ops),
        context_(context_moves),
        dims_(*work_.model, work_.shape, work_.dtype, *work_.kernels) {}

  /// x, and in training what is saved where there is room for it -> out, slices of the tokens.
  void forward(UnitId u, int mb, const Part& out, bool keeps);
  /// What a sublayer begins with, once more: the backward pass needs it too.
  void enter_again(UnitId u, int mb);
  void backward(UnitId u, int mb);
  void head(int mb);
  void evaluate_head(int mb);

 private:
  std::uint64_t whole_bytes() const;  ///< of all tokens' activations
  std::uint64_t sum_bytes() const;    ///< the same in fp32
  Part normed(UnitId u, int mb);
  Part workspace(Op& op, UnitId u, std::uint64_t bytes);
  void enter_backward(UnitId u, int mb, const Part& d_sum, const Part& d_out);
  std::pair<Part, Part> logits_of(UnitId u, int mb, int chunk, const Part& before);
  void touch_chunk(Op& op, const Part& normed, int chunk) const;
  /// Of something of all tokens, that of a chunk.
  Part of_chunk(const Part& whole, int chunk, std::uint64_t bytes_per_element) const;

  GradientMoves& gradients_;
  const SublayerOps& ops_;
  ContextMoves& context_;
  Dims dims_;
};

}  // namespace sluice
