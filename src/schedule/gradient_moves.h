// Gradients: added up over micro-batches and lots, parked between passes, reduced over the ranks, and drained to where
// they wait for their update.
#pragma once

#include "src/schedule/rank_moves.h"

namespace sluice {

class GradientMoves : RankMoves {
 public:
  explicit GradientMoves(RankContext& context)
      : RankMoves(context), lot_sums_(work_.lot_sums()), tied_(static_cast<std::size_t>(work_.lots)) {}

  void bring_gradients(UnitId u);
  void park_gradients(UnitId u);
  void park_tied_gradients();
  Mode open_lot(UnitId u, int mb);
  void close_lot(UnitId u, int mb);
  bool has_tied_gradient() const { return kind_ == PlanKind::train && work_.model->config.tied; }
  Part& tied_gradient(int lot);
  /// Of the lots that end among these micro-batches, where the head is on another stage than the embedding.
  void receive_tied_gradients(const MicroBatchGroup& group);
  /// The unit's gradient over the ranks; behind a lot that is not the last its shard waits for the others.
  void reduce(UnitId u, int lot);
  /// gradient tile -> host (and its norm) -> where it waits, or the staging of its update
  void drain_tile(const TileRef& t);
  void close_gradient(UnitId u);

 private:
  /// The head's part of a tied matrix's gradient, by lot: on the device, or parked.
  struct Tied {
    Part open;
    Parked parked;
    Part arrived;  ///< from the head's stage
  };
  void add(const Part& from, const Part& to, UnitId u);
  void add_copies(UnitId u, const Part& gradient);
  Part reduced(UnitId u, const Part& gradient);
  Part reduced_in_bits(UnitId u, const Part& gradient);

  LotSums lot_sums_;
  std::vector<Tied> tied_;
};

}  // namespace sluice
