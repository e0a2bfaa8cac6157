// Optimizer tiles: read, updated on the CPU or the device, written, and their parameters published.
#pragma once

#include "src/schedule/rank_moves.h"

namespace sluice {

class OptimizerMoves : RankMoves {
 public:
  explicit OptimizerMoves(RankContext& context) : RankMoves(context) {}

  void read_tile(const TileRef& t);
  /// Whether there is a place for the parameters on the device, or they are in host memory to be staged.
  bool can_load(const TileRef& t);
  /// host -> device, where the device updates the unit; parameters into their place if that is open.
  void load_tile(const TileRef& t);
  void update_tile(const TileRef& t);
  void write_tile(const TileRef& t);
  /// To a checkpoint, where the workload has such.
  void save_tile(const TileRef& t);
  /// updated parameters -> the rank's part of the open (or resident) parameters
  void publish_tile(const TileRef& t);
  /// Behind the last update ahead of the forward pass, or in the backward pass: what the device has counted of
  /// parameters that diverged.
  void verify(bool ahead);
  void mark_updated(UnitId u) { unit(u).updated = true; }
};

}  // namespace sluice
