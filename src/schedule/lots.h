// In which order the gradients of a step are added up.
//
// A global batch is cut into lots of consecutive samples. A lot's gradient adds up micro-batch by micro-batch; lots add
// up in a binary tree: neighbours in pairs, and their sums in pairs, as long as there is an even number of them; what
// is left is added one after the other. A rank has some neighbouring lots, and if they are a power of two, their sum is
// a node of the tree: so any number of ranks that has such shares gives the same bits.
#pragma once

#include <bit>

namespace sluice {

/// The part of the tree that one rank adds up itself, lot after lot, on a stack of partial sums.
class LotSums {
 public:
  /// lots of the rank, at least 1, each of so many micro-batches
  LotSums(int lots, int micro_batches) : micro_batches_(micro_batches), block_(lots & -lots) {}

  int lot_of(int micro_batch) const { return micro_batch / micro_batches_; }
  bool begins_lot(int micro_batch) const { return micro_batch % micro_batches_ == 0; }
  bool ends_lot(int micro_batch) const { return begins_lot(micro_batch + 1); }
  /// How often, behind this lot, the sum on top of the stack is added to the one below it.
  int additions_after(int lot) const {
    const int within = lot % block_;
    const bool ends_block = within == block_ - 1;
    return std::countr_one(static_cast<unsigned>(within)) + (ends_block && lot >= block_ ? 1 : 0);
  }
  /// Partial sums on the stack when so many micro-batches have been added.
  int depth_after(int micro_batches) const {
    const int lots = micro_batches / micro_batches_;
    const int whole = std::popcount(static_cast<unsigned>(lots % block_)) + (lots >= block_ ? 1 : 0);
    return whole + (micro_batches % micro_batches_ > 0 ? 1 : 0);
  }

 private:
  int micro_batches_;
  int block_;  ///< lots that are added in pairs: the largest power of two that divides them
};

}  // namespace sluice
