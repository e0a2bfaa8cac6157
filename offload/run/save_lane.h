// The lane of what goes to a checkpoint while steps go on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/run/run_state.h"

namespace sluice {

/// One state of a tile, as an update has left it.
struct SavedTile {
  UnitId unit = -1;
  StateKind state = StateKind::parameter;
  std::uint64_t element = 0;  ///< first of the tile within the rank's shard
  std::span<const std::byte> data;
};

/// Where a rank's tiles go that are saved: a checkpoint that is being written. Called on the save lane's thread,
/// between the release of an iteration that saves and its end. It keeps its errors, which are none of the step's.
class SaveSink {
 public:
  virtual ~SaveSink() = default;
  static constexpr std::size_t max_under_way = 64;  ///< states of tiles
  /// The data stays as it is until `finish` has told of the tile.
  virtual void begin(const SavedTile& tile) = 0;
  /// Waits for the tiles that were begun, oldest first, until only so many are under way.
  virtual void finish(std::size_t left) = 0;
};

/// Begins what is due, many tiles at once, and makes their ends visible in order. In iterations that do not save, its
/// ops do nothing. One thread.
class SaveLane {
 public:
  SaveLane(RunState& run, LaneId lane, SaveSink* sink) : run_(run), lane_(lane), sink_(sink) {}

  void run();  ///< until the run halts; nothing is under way when it returns

 private:
  bool run_iteration(std::uint64_t iteration);
  bool wait(std::size_t source, std::uint64_t threshold);
  void begin(const BoundOp& op);
  void finish_oldest();

  RunState& run_;
  LaneId lane_;
  SaveSink* sink_;
  // Ops of the iteration, in their order: that were begun, and that have ended.
  std::uint64_t iteration_ = 0;
  std::size_t begun_ = 0, ended_ = 0;
  std::size_t tiles_ = 0;  ///< states of theirs
  /// Ops that may be under way; the plan's tiles bound that anyway.
  static constexpr std::size_t ops_at_once = SaveSink::max_under_way / 4;
  std::array<double, ops_at_once> started_{};
};

}  // namespace sluice
