// Optimizer tiles one behind the other (internal to the building of plans).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sluice/status.h"
#include "src/schedule/optimizer_moves.h"

namespace sluice {

/// Emits tile pipelines: reads run `depth` tiles ahead of the updates, across units. Loads to the device run half as
/// far, so that copies behind them do not wait for the drive.
class TileStream {
 public:
  TileStream(OptimizerMoves& optimizer, int depth, bool ahead)
      : optimizer_(optimizer), depth_(static_cast<std::size_t>(std::max(1, depth))), ahead_(ahead) {}
  void add(const std::vector<TileRef>& tiles) { tiles_.insert(tiles_.end(), tiles.begin(), tiles.end()); }
  void read_ahead() {
    while (read_ < std::min(done_ + depth_, tiles_.size())) {
      optimizer_.read_tile(tiles_[read_++]);
    }
  }
  /// Update and write the next tile, publishing it to the device if asked.
  void advance(bool publish) {
    read_ahead();
    SLUICE_CHECK(done_ < tiles_.size(), "tile %zu", done_);
    const std::size_t to_load = std::min(read_, done_ + depth_ / 2 + 1);
    for (; loaded_ < to_load && optimizer_.can_load(tiles_[loaded_]); ++loaded_) optimizer_.load_tile(tiles_[loaded_]);
    optimizer_.update_tile(tiles_[done_]);
    optimizer_.write_tile(tiles_[done_]);
    optimizer_.save_tile(tiles_[done_]);
    if (publish) optimizer_.publish_tile(tiles_[done_]);
    if (++done_ == tiles_.size()) optimizer_.verify(ahead_);
  }
  bool done() const { return done_ == tiles_.size(); }

 private:
  OptimizerMoves& optimizer_;
  std::size_t depth_;
  bool ahead_;  ///< of the forward pass
  std::vector<TileRef> tiles_;
  std::size_t read_ = 0, loaded_ = 0, done_ = 0;
};

}  // namespace sluice
