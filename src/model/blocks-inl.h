// Attention in blocks: the keys and values of a slice of a sequence. In ring attention (arXiv 2310.01889) each rank
// keeps the queries of its slice, and blocks go round from rank to rank while the one before is worked on. One rank may
// also take a sequence slice by slice: then the blocks of earlier slices come back to the queries of each.
//
// In step s a slice's queries meet the block of the slice s before it. In a ring slices are of two pieces (slice_runs),
// so that a step is up to four calls a sequence, of a piece of queries and a piece of keys; two of them see nothing, or
// half, and every rank has as much to do. Slices of one rank are of one piece. What comes of the blocks is merged by
// its log-sum-exp in the order of the steps:
//
//   core           partial, lse: of the blocks so far; in the last step attended is all of it, rounded once
//   core_backward  leaving: this block's gradient, of these queries; partial: the queries' gradient so far
//
// core_earlier and its backward pass are the same of a block that one rank's queries see all of. In a ring a block's
// gradient goes round behind it, is added to by each rank, and is with its owner after as many shifts as there are
// ranks. One rank adds to it where it lies (`accumulate`). Sums are fp32.
#pragma once

#include "src/model/attention_shape.h"
#include "src/model/sublayer.h"
#include "src/model/workspaces.h"

namespace sluice {

template <class T, class K>
class BlockCore {
 public:
  BlockCore(const K& device, const SublayerArgs& args, const Dims& d) : device_(device), args_(args), d_(d) {
    SLUICE_CHECK(args.step >= 0 && args.step < d.context * d.slices && args.tokens.positions != nullptr,
                 "step %lld of %lld", static_cast<long long>(args.step), static_cast<long long>(d.context * d.slices));
  }

  void run(OpKind op) const {
    if (op == OpKind::core || op == OpKind::core_earlier) return forward();
    // Pieces that see nothing of each other add nothing.
    if (args_.step == 0) device_.zero(args_.partial, partial_bytes(d_));
    if (!args_.accumulate) device_.zero(args_.leaving, block_gradient_bytes(d_));
    const ContextSpace space(Carver(args_.workspace.data()), d_, true);
    each_piece([&](const Queries& of) { each_seen(of, [&](const Keys& seen) { backward(space, of, seen); }); });
  }

 private:
  /// A piece of a sequence's queries: its place among the pieces, and its first token in the micro-batch.
  struct Queries {
    std::int64_t sequence, place, token;
    std::int64_t lse;
  };
  struct Keys {
    std::int64_t token;
    kernels::AttentionShape shape;
  };

  static T* elements(std::byte* at) { return reinterpret_cast<T*>(at); }
  std::int64_t place(std::int64_t slice, std::int64_t piece) const {
    return piece == 0 ? slice : 2 * d_.context - 1 - slice;
  }
  std::int64_t token(std::int64_t sequence, std::int64_t piece) const {
    return sequence * d_.sequence + piece * d_.piece;
  }

  template <class Visit>
  void each_piece(const Visit& visit) const {
    for (std::int64_t b = 0; b < d_.batch; ++b)
      for (std::int64_t p = 0; p < d_.pieces; ++p)
        visit(Queries{b, place(args_.slice, p), token(b, p), (d_.pieces * b + p) * d_.heads * d_.piece});
  }
  /// Of this step's block, what the queries see.
  template <class Visit>
  void each_seen(const Queries& of, const Visit& visit) const {
    const std::int64_t owner =
        d_.ring ? (args_.slice + d_.context - args_.step) % d_.context : args_.slice - args_.step;
    for (std::int64_t p = 0; p < d_.pieces; ++p) {
      const std::int64_t before = of.place - place(owner, p);
      // The first query is so far from the last key.
      const bool in_window = d_.window == 0 || (before - 1) * d_.piece + 1 < d_.window;
      if (before < 0 || !in_window) continue;
      const std::int32_t* positions = args_.tokens.documents ? args_.tokens.positions + of.token : nullptr;
      visit(Keys{token(of.sequence, p), block_attention_shape(d_, before, positions)});
    }
  }

  void forward() const {
    const ContextSpace space(Carver(args_.workspace.data()), d_, false);
    T* part = elements(space.part);
    each_piece([&](const Queries& of) {
      const T* q = elements(args_.mixed) + of.token * d_.q;
      float* sum = args_.partial + of.token * d_.q;
      bool is_first = args_.step == 0;  // where every query sees itself
      each_seen(of, [&](const Keys& seen) {
        const T* k = elements(args_.block) + seen.token * 2 * d_.kv;
        device_.attention_forward(seen.shape, q, k, k + d_.kv, part, space.part_lse, space.scratch);
        device_.attention_merge(seen.shape, static_cast<const T*>(part), static_cast<const float*>(space.part_lse),
                                is_first, sum, args_.lse + of.lse);
        is_first = false;
      });
      if (args_.attended != nullptr)
        device_.narrow(static_cast<const float*>(sum), elements(args_.attended) + of.token * d_.q, d_.piece * d_.q);
    });
  }

  void backward(const ContextSpace& space, const Queries& of, const Keys& seen) const {
    const std::int64_t row = of.token * d_.q, block_row = seen.token * 2 * d_.kv;
    const T *q = elements(args_.mixed) + row, *k = elements(args_.block) + block_row;
    const T *attended = elements(args_.attended) + row, *d_attended = elements(args_.arrived) + row;
    T *dq = elements(space.part), *dk = elements(space.keys);
    device_.attention_backward(seen.shape, q, k, k + d_.kv, attended, d_attended,
                               static_cast<const float*>(args_.lse) + of.lse, dq, dk, dk + d_.kv, space.scratch);
    device_.add_widened(static_cast<const T*>(dq), args_.partial + row, d_.piece * d_.q);
    device_.add_widened(static_cast<const T*>(dk), reinterpret_cast<float*>(args_.leaving) + block_row,
                        d_.piece * 2 * d_.kv);
  }

  const K& device_;
  const SublayerArgs& args_;
  const Dims& d_;
};

}  // namespace sluice
