// What a step's updates leave, on its way to a rank's file of a checkpoint.
#pragma once

#include <array>
#include <vector>

#include "io/checkpoint/state_writer.h"
#include "offload/run/save_lane.h"
#include "offload/state/moment_layout.h"
#include "sluice/dtype.h"

namespace sluice {

/// open() and close() are for the controlling thread: before an iteration that saves is released, and after it has
/// ended.
class TileSaver final : public SaveSink {
 public:
  TileSaver(Dtype parameters, MomentLayout moments) : parameters_(parameters), moments_(moments) {}

  /// `places`: by unit of the model, which one of the writer's file it is, or -1 where that has none of it. The writer
  /// outlives close().
  void open(StateWriter& writer, std::vector<std::int32_t> places);
  /// The first error since then.
  Status close();

  void begin(const SavedTile& tile) override;
  void finish(std::size_t left) override;

 private:
  std::uint64_t offset_bytes(StateKind kind, std::uint64_t element) const;

  Dtype parameters_;
  MomentLayout moments_;
  StateWriter* writer_ = nullptr;
  std::vector<std::int32_t> places_;
  std::array<StateTransfer, max_under_way> transfers_;  ///< ring
  std::size_t begun_ = 0, finished_ = 0;
  Status status_;
};

}  // namespace sluice
