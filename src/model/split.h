// A model whose sublayers are cut over ranks: tensor parallelism (Megatron-LM, arXiv 1909.08053) with sequence
// parallelism (arXiv 2205.05198).
//
// A rank has some heads of every attention, some columns of every MLP and some words of the vocabulary, so that the
// first multiply of a sublayer gives it whole columns of what comes next, and the last one a part of a sum over ranks.
// Norms, biases behind that sum, and what belongs to all heads are on all ranks. Every rank has the same shapes.
// Between sublayers a rank has a slice of the tokens:
//
//   enter           x -> norm(x), of the slice            all-gather: of all tokens
//   part_forward    norm(x), own tensors -> own part of the sum, of all tokens            reduce-scatter: of the slice
//   leave           x + sum + bias -> x_out, of the slice
//
// and backwards the same way: d_out is gathered, part_backward makes gradients of own tensors and a part of the norm's
// gradient, which is reduced to the slice for enter_backward. The embedding has no enter, and its leave no x. The head
// has no leave: part_logits makes logits of a chunk of tokens and what is to know of them
// (kernels/vocabulary_part.h), which all ranks exchange, and part_gradient, or part_loss, goes on from that.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sluice/topology.h"
#include "src/model/model.h"

namespace sluice {

/// bad_request where there are fewer heads than ranks. Heads, columns and words that do not divide are filled up with
/// zeros.
Status check_split(const ModelConfig& config, RankId ranks);
/// bad_request where ranks that have slices of sequences can not share out the heads of attention: `model` as a rank
/// has it.
Status check_context(const ModelSpec& model, RankId ranks);
/// Neighbouring ranks that have the same keys and values, where there are fewer heads of those than ranks.
RankId key_value_copies(const ModelConfig& config, RankId ranks);

/// How a tensor is cut: one of its dimensions, in `groups` that are cut alike (q, k and v in GPT-2's c_attn), into
/// `parts`.
struct TensorCut {
  int axis = -1;  ///< none: all ranks have all of it
  std::int64_t groups = 1;
  RankId parts = 1;  ///< fewer than ranks: that many neighbours have the same
};

class SplitModel {
 public:
  /// `whole` outlives it, and passes check_split.
  SplitModel(const ModelSpec& whole, RankId ranks);

  RankId ranks() const { return ranks_; }
  const ModelSpec& whole() const { return *whole_; }
  /// As every rank has it: its heads, columns and words.
  const ModelSpec& part() const { return part_; }
  const TensorCut& cut(UnitId unit, std::size_t tensor) const { return cuts_[static_cast<std::size_t>(unit)][tensor]; }
  /// Neighbouring ranks that have the same part of a tensor: they add up its gradients, and one counts in norms.
  RankId copies(UnitId unit, std::size_t tensor) const { return static_cast<RankId>(ranks_ / cut(unit, tensor).parts); }
  bool counts(UnitId unit, std::size_t tensor, RankId rank) const { return rank % copies(unit, tensor) == 0; }
  /// Elements of a unit's part, of neighbouring tensors and what lies between them, that as many ranks have alike.
  struct Copied {
    std::uint64_t first = 0, numel = 0;
    RankId copies = 1;
  };
  std::vector<Copied> copied(UnitId unit) const;
  /// Of the vocabulary's words those that a rank has, which are fewer than its matrix has rows where they do not
  /// divide.
  std::int64_t words(RankId rank) const;
  std::int64_t first_word(RankId rank) const { return static_cast<std::int64_t>(rank) * part_.config.vocabulary; }

  /// Consecutive elements of both tensors.
  struct Run {
    std::uint64_t of_part = 0, of_whole = 0, numel = 0;
  };
  /// Of a rank's part of a tensor, in its order; what fills it up is in none.
  void each_run(UnitId unit, std::size_t tensor, RankId rank, const std::function<void(const Run&)>& visit) const;

 private:
  const ModelSpec* whole_;
  RankId ranks_;
  ModelSpec part_;
  std::vector<std::vector<TensorCut>> cuts_;  ///< by unit and tensor
};

}  // namespace sluice
