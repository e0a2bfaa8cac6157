// What a step's updates leave, on its way to a rank's file of a checkpoint.
#pragma once

#include <array>
#include <map>
#include <optional>

#include "io/checkpoint/state_writer.h"
#include "offload/run/save_lane.h"
#include "src/train/states/states.h"

namespace sluice {

/// open() and close() are for the controlling thread: before an iteration that saves is released, and after it has
/// ended.
class TileSaver final : public SaveSink {
 public:
  /// Of a rank of these states, which outlive it.
  TileSaver(const States& states, RankId rank) : states_(states), rank_(rank), formats_(states.formats()) {}

  /// What the writer's file has of the rank goes there; what other ranks save, nowhere. The writer outlives close().
  /// `slot` is the one of the swap file that the iteration writes, where steps are durable: if the file can share its
  /// blocks, tiles are not written and share_slot() does that.
  void open(StateWriter& writer, std::optional<std::uint8_t> slot);
  /// The iteration has ended, and none was released since that writes the slot again.
  Status share_slot();
  bool shares_slot() const { return slot_.has_value(); }
  /// The first error since then.
  Status close();

  void begin(const SavedTile& tile) override;
  void finish(std::size_t left) override;

 private:
  const States& states_;
  RankId rank_;
  StoredFormats formats_;
  StateWriter* writer_ = nullptr;
  std::optional<std::uint8_t> slot_;                    ///< that the writer's file shares
  std::map<UnitId, std::size_t> places_;                ///< of the model's units in the writer's file
  std::array<StateTransfer, max_under_way> transfers_;  ///< ring
  std::size_t begun_ = 0, finished_ = 0;
  Status status_;
};

}  // namespace sluice
