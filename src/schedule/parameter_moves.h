// Parameters on the device: fetched, gathered over the ranks, copied a second time.
#pragma once

#include "src/schedule/rank_moves.h"

namespace sluice {

class ParameterMoves : RankMoves {
 public:
  explicit ParameterMoves(RankContext& context) : RankMoves(context) {}

  void open_parameters(UnitId u);
  bool is_open(UnitId u) const { return unit(u).open.valid(); }
  /// home -> the rank's part of the open parameters; `retain` keeps the tile in host memory for its update.
  void fetch_tile(const TileRef& t, bool retain);
  void expect_no_retained_tiles(UnitId u) { unit(u).fetched_before = true; }
  void gather(UnitId u);
  /// The rank's part of the open parameters into host memory, and from there back into open ones, with those of close
  /// ranks.
  void keep_second_copy(UnitId u);
  void fetch_second_copy(UnitId u);
  void close_parameters(UnitId u);
  /// A tied matrix, where the head is on another stage than the embedding: once a step, from open parameters to a copy
  /// that stays for all passes over the head.
  void send_tied();
  void receive_tied();
  void land_tied();

 private:
  Part arrived_tied_;
};

}  // namespace sluice
