// What a step's updates leave, on its way to a rank's file of a checkpoint.
#pragma once

#include <array>
#include <map>

#include "io/checkpoint/state_writer.h"
#include "offload/run/save_lane.h"
#include "src/train/states/states.h"

namespace sluice {

/// open() and close() are for the controlling thread: before an iteration that saves is released, and after it has
/// ended.
class TileSaver final : public SaveSink {
 public:
  /// Of a rank of these states, which outlive it.
  explicit TileSaver(const States& states) : states_(states), formats_(states.formats()) {}

  /// What the writer's file has of the rank goes there; what other ranks save, nowhere. The writer outlives close().
  void open(StateWriter& writer);
  /// The first error since then.
  Status close();

  void begin(const SavedTile& tile) override;
  void finish(std::size_t left) override;

 private:
  const States& states_;
  StoredFormats formats_;
  StateWriter* writer_ = nullptr;
  std::map<UnitId, std::size_t> places_;                ///< of the model's units in the writer's file
  std::array<StateTransfer, max_under_way> transfers_;  ///< ring
  std::size_t begun_ = 0, finished_ = 0;
  Status status_;
};

}  // namespace sluice
