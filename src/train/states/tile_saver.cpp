#include "src/train/states/tile_saver.h"

#include <algorithm>
#include <utility>

namespace sluice {

void TileSaver::open(StateWriter& writer, std::optional<std::uint8_t> slot) {
  SLUICE_CHECK(begun_ == finished_, "%zu tiles are under way", begun_ - finished_);
  writer_ = &writer;
  places_.clear();
  const std::vector<StoredUnit>& units = writer.file().units;
  for (std::size_t i = 0; i < units.size(); ++i) places_[states_.unit_of(units[i].name)] = i;
  status_ = success();
  slot_ = slot && states_.shares_slots(rank_, writer) ? slot : std::nullopt;
}

Status TileSaver::share_slot() { return slot_ ? states_.share_slot(rank_, *slot_, *writer_) : success(); }

Status TileSaver::close() {
  SLUICE_CHECK(begun_ == finished_, "%zu tiles are under way", begun_ - finished_);
  writer_ = nullptr;
  return std::exchange(status_, success());
}

void TileSaver::begin(const SavedTile& tile) {
  StateTransfer& transfer = transfers_[begun_++ % transfers_.size()];
  const auto unit = places_.find(tile.unit);
  if (writer_ == nullptr || unit == places_.end() || !status_.ok()) return;
  if (slot_ && StateWriter::can_be_shared(tile.data.size())) return;
  const std::vector<StoredState>& states = writer_->file().units[unit->second].states;
  const auto state = std::ranges::find(states, tile.state, &StoredState::kind);
  SLUICE_CHECK(state != states.end(), "(%s)", state_names[static_cast<std::size_t>(tile.state)]);
  // A tile begins with a block.
  status_ = writer_->start(unit->second, static_cast<std::size_t>(state - states.begin()),
                           stored_bytes(formats_, tile.state, tile.element), tile.data, transfer);
}

void TileSaver::finish(std::size_t left) {
  for (; begun_ - finished_ > left; ++finished_) {
    // Also what was begun before an error: its memory is in use until then.
    const Status written = writer_ == nullptr ? success() : writer_->finish(transfers_[finished_ % transfers_.size()]);
    if (status_.ok()) status_ = written;
  }
}

}  // namespace sluice
