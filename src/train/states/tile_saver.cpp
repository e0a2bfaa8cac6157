#include "src/train/states/tile_saver.h"

#include <algorithm>
#include <utility>

namespace sluice {

void TileSaver::open(StateWriter& writer, std::vector<std::int32_t> places) {
  SLUICE_CHECK(begun_ == finished_, "%zu tiles are under way", begun_ - finished_);
  writer_ = &writer;
  places_ = std::move(places);
  status_ = success();
}

Status TileSaver::close() {
  SLUICE_CHECK(begun_ == finished_, "%zu tiles are under way", begun_ - finished_);
  writer_ = nullptr;
  return std::exchange(status_, success());
}

/// Of the first element of a tile, which begins with a block.
std::uint64_t TileSaver::offset_bytes(StateKind kind, std::uint64_t element) const {
  switch (kind) {
    case StateKind::parameter: return element * dtype_bytes(parameters_);
    case StateKind::remainder: return element * 2;
    default: return moments_.bytes(element);
  }
}

void TileSaver::begin(const SavedTile& tile) {
  StateTransfer& transfer = transfers_[begun_++ % transfers_.size()];
  const std::int32_t place = writer_ == nullptr ? -1 : places_[static_cast<std::size_t>(tile.unit)];
  if (place < 0 || !status_.ok()) return;
  const auto unit = static_cast<std::size_t>(place);
  const std::vector<StoredState>& states = writer_->file().units[unit].states;
  const auto state = std::ranges::find(states, tile.state, &StoredState::kind);
  SLUICE_CHECK(state != states.end(), "(%s)", state_names[static_cast<std::size_t>(tile.state)]);
  status_ = writer_->start(unit, static_cast<std::size_t>(state - states.begin()),
                           offset_bytes(tile.state, tile.element), tile.data, transfer);
}

void TileSaver::finish(std::size_t left) {
  for (; begun_ - finished_ > left; ++finished_) {
    // Also what was begun before an error: its memory is in use until then.
    const Status written = writer_ == nullptr ? success() : writer_->finish(transfers_[finished_ % transfers_.size()]);
    if (status_.ok()) status_ = written;
  }
}

}  // namespace sluice
