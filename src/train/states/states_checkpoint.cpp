// How the states of a run get into the files of a checkpoint, and out of them.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <numeric>

#include "src/train/states/state_layout.h"
#include "src/train/states/state_pieces.h"
#include "src/train/states/state_source.h"
#include "src/train/states/states.h"

namespace sluice {
namespace {

constexpr std::uint64_t copied_bytes = 2u << 20;  ///< at a time
constexpr std::size_t copies_in_flight = 16;      ///< half of them are read, half are written

}  // namespace

StoredFormats States::formats() const { return {run_.workload.dtype, moments_.format, moments_.group_numel}; }

std::vector<StoredTensor> States::tensors() const { return stored_tensors(run_.model); }

/// Of ranks that have the same, each writes some units.
RankId States::saver_of(UnitId unit, RankId shard) const {
  const ShardMap map = run_.workload.shard_map();
  const RankRange all = stages_.ranks_of(unit);
  std::vector<RankId> having;
  for (RankId r = all.first; r < all.end(); ++r)
    if (map.shard_of(r) == shard) having.push_back(r);
  // What is only read is not there of every replica.
  return only_reads_ ? having.front() : having[static_cast<std::size_t>(unit) % having.size()];
}

std::vector<StoredFile> States::files() const {
  const Workload& w = run_.workload;
  const ShardMap map = w.shard_map();
  std::vector<StoredFile> files(w.ranks());
  for (RankId r = 0; r < files.size(); ++r) files[r].name = fmt::format("rank-{:05}.h5", r);
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u)
    for (RankId shard = 0; shard < map.shards(); ++shard) {
      if (map.content_numel(u, shard) == 0) continue;  // padding alone
      StoredUnit unit;
      unit.name = w.model->units[static_cast<std::size_t>(u)].name;
      if (map.parts() > 1) unit.name += fmt::format(".part{}", map.part_of(shard));
      unit.numel = map.shard_numel(u);
      unit.pieces = shard_pieces(run_.model, w.split, map, u, shard);
      for (const StateKind kind : state_kinds(formats(), true, true)) {
        const BufferId home = table(u).home(u, kind), kept = table(u).kept(u, kind);
        if (home == no_buffer) continue;
        const Buffer& b = buffer(u, kept == no_buffer ? home : kept);
        // Tiles are whole blocks, also of what lies in memory.
        unit.states.push_back({kind, 0, b.bytes, b.block_bytes, 0});
      }
      files[saver_of(u, shard)].units.push_back(std::move(unit));
    }
  return files;
}

std::uint64_t States::checkpoint_bytes() const { return sluice::state_bytes(files()); }

Status States::copy_out(RankId rank, StateWriter& writer, const std::function<Status(std::uint64_t)>& watch) {
  struct Copy {
    std::byte* memory = nullptr;
    SwapTransfer in;
    StateTransfer out;
    std::size_t unit = 0, state = 0;
    std::uint64_t offset = 0, bytes = 0;
    BufferId from = 0;
    SwapStore* reads = nullptr;  ///< while it does
  };
  // Ahead of the copies: what is in flight ends before they go.
  std::uint64_t piece_bytes = copied_bytes;
  for (const StoredUnit& unit : writer.file().units)
    for (const StoredState& s : unit.states) piece_bytes = std::max<std::uint64_t>(piece_bytes, s.block_bytes);
  const AlignedMemory memory(piece_bytes * copies_in_flight);
  std::array<Copy, copies_in_flight> copies;
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].memory = memory.data() + i * piece_bytes;
  std::size_t begun = 0, read = 0;
  const auto write_next = [&]() -> Status {
    Copy& copy = copies[read++ % copies.size()];
    if (SwapStore* const source = std::exchange(copy.reads, nullptr); source != nullptr) {
      SLUICE_TRY(source->finish(copy.in));
      std::vector<FileRange> places;
      for (const SwapPiece& p : source->places(copy.from, Slot::current, copy.offset, copy.bytes))
        places.push_back({source->file().files()[p.file].fd, p.offset, p.bytes});
      SLUICE_ASSIGN(const bool is_shared,
                    writer.share(copy.unit, copy.state, copy.offset, {copy.memory, copy.bytes}, places));
      if (is_shared) return watch(copy.bytes);
    }
    SLUICE_TRY(writer.start(copy.unit, copy.state, copy.offset, {copy.memory, copy.bytes}, copy.out));
    return watch(copy.bytes);
  };
  const auto begin = [&](std::size_t unit, std::size_t state, BufferId id, const Buffer& b, std::uint64_t offset,
                         std::uint64_t bytes) -> Status {
    if (stop_ != nullptr && stop_->load()) return Error{ErrorCode::cancelled, "stopped by a signal"};
    Copy& copy = copies[begun++ % copies.size()];
    SLUICE_TRY(writer.finish(copy.out));
    copy.unit = unit;
    copy.state = state;
    copy.offset = offset;
    copy.bytes = bytes;
    if (b.tier == Tier::host && !only_reads_) {
      // Written from where it lies: nothing changes it meanwhile.
      const std::byte* const from = host(rank, b) + offset;
      SLUICE_TRY(writer.start(unit, state, offset, {from, bytes}, copy.out));
      ++read;
      return watch(bytes);
    }
    copy.reads = store(rank);
    copy.from = id;
    return copy.reads->start(IoOp::read, id, Slot::current, offset, {copy.memory, bytes}, copy.in);
  };
  const auto copy_all = [&]() -> Status {
    for (std::size_t i = 0; i < writer.file().units.size(); ++i) {
      const StoredUnit& stored = writer.file().units[i];
      const UnitId u = unit_of(stored.name);
      for (std::size_t s = 0; s < stored.states.size(); ++s) {
        const StoredState& state = stored.states[s];
        const BufferId home = table(u).home(u, state.kind), kept = table(u).kept(u, state.kind);
        const bool from_host = !only_reads_ && buffer(u, home).tier == Tier::host;
        const BufferId id = from_host ? home : kept;
        const Buffer& b = buffer(u, id);
        // What is read now and what lies in memory are in one order.
        if (from_host)
          while (read < begun) SLUICE_TRY(write_next());
        const std::uint64_t step = piece_bytes / state.block_bytes * state.block_bytes;
        for (std::uint64_t at = 0; at < state.bytes; at += step) {
          SLUICE_TRY(begin(i, s, id, b, at, std::min(step, state.bytes - at)));
          if (begun - read > copies.size() / 2) SLUICE_TRY(write_next());
        }
      }
    }
    while (read < begun) SLUICE_TRY(write_next());
    for (Copy& copy : copies) SLUICE_TRY(writer.finish(copy.out));
    return success();
  };
  const Status copied = copy_all();
  // Nothing is in flight when the memory goes.
  if (!copied.ok()) {
    if (store(rank) != nullptr) store(rank)->drain();
    for (Copy& copy : copies) static_cast<void>(writer.finish(copy.out));
  }
  return copied;
}

bool States::shares_slots(RankId rank, const StateWriter& writer) const {
  if (!run_.workload.durable) return false;
  return std::ranges::all_of(store(rank)->file().files(),
                             [&](const IoFile& file) { return writer.shares_with(file.fd); });
}

Status States::share_slot(RankId rank, std::uint8_t physical_slot, StateWriter& writer) const {
  const SwapStore& source = *store(rank);
  for (std::size_t i = 0; i < writer.file().units.size(); ++i) {
    const StoredUnit& stored = writer.file().units[i];
    const UnitId u = unit_of(stored.name);
    for (std::size_t s = 0; s < stored.states.size(); ++s) {
      const std::uint64_t at = buffer(u, table(u).kept(u, stored.states[s].kind)).offset;
      SLUICE_TRY(writer.share_rest(
          i, s, source.sums_of_slot(at, physical_slot), [&](std::uint64_t offset_bytes, std::uint64_t bytes) {
            std::vector<FileRange> ranges;
            for (const SwapPiece& p : source.places_of_slot(at, physical_slot, offset_bytes, bytes))
              ranges.push_back({source.file().files()[p.file].fd, p.offset, p.bytes});
            return ranges;
          }));
    }
  }
  return success();
}

UnitId States::unit_of(const std::string& stored) const {
  const std::vector<UnitSpec>& units = run_.workload.model->units;
  const std::string name = stored.substr(0, stored.find(".part"));
  const auto found = std::find_if(units.begin(), units.end(), [&](const UnitSpec& u) { return u.name == name; });
  SLUICE_CHECK(found != units.end(), "(%s)", stored.c_str());
  return static_cast<UnitId>(found - units.begin());
}

Status States::load_checkpoint(Checkpoint& checkpoint, const QueueOptions& queue, bool with_moments,
                               const Watch& watch) {
  StateSource source(checkpoint, formats(), queue);
  if (!with_moments) source.leave_out_moments();
  SLUICE_ASSIGN(const std::vector<std::uint32_t> numbers, source.tensors(tensors()));
  SLUICE_TRY(clear_states(false));
  const ShardMap map = run_.workload.shard_map();
  struct Target {
    UnitId unit = 0;
    RankId shard = 0;
    std::vector<TensorPiece> pieces;
  };
  std::vector<Target> targets;
  std::uint64_t all = 0, done = 0;
  for (UnitId u = 0; u < static_cast<UnitId>(run_.workload.model->units.size()); ++u)
    for (RankId shard = 0; shard < map.shards(); ++shard) {
      bool is_here = false;
      for (RankId r = here_.first; r < here_.end(); ++r) is_here |= map.shard_of(r) == shard && stages_.has(r, u);
      if (!is_here) continue;
      targets.push_back({u, shard, shard_pieces(run_.model, run_.workload.split, map, u, shard)});
      for (TensorPiece& piece : targets.back().pieces) piece.tensor = numbers[piece.tensor];
      all += map.shard_numel(u);
    }
  const std::vector<StateKind> kinds = state_kinds(formats(), true, true);
  all *= kinds.size();
  // Kinds of a piece one after the other: where one is made of another, that is read once.
  std::size_t target = 0, kind = 0;
  std::uint64_t at = 0;
  const auto next = [&]() -> std::optional<StateWindow> {
    for (;;) {
      if (target == targets.size()) return std::nullopt;
      const Target& t = targets[target];
      const std::uint64_t shard = map.shard_numel(t.unit), n = std::min(piece_numel_, shard - at);
      const StateWindow window{&t.pieces, kinds[kind], at, n, target};
      if (++kind == kinds.size()) {
        kind = 0;
        at += n;
        if (at == shard) {
          at = 0;
          ++target;
        }
      }
      if (table(t.unit).home(t.unit, window.kind) != no_buffer) return window;
    }
  };
  SwapWindow window(piece_numel_ * 4);
  const auto put = [&](const StateWindow& w, std::span<const std::byte> data) -> Status {
    const Target& t = targets[w.target];
    for (RankId r = here_.first; r < here_.end(); ++r) {
      if (map.shard_of(r) != t.shard || !stages_.has(r, t.unit)) continue;
      SLUICE_ASSIGN(SwapWindow::Piece * piece, window.take());
      std::copy(data.begin(), data.end(), piece->data());
      SLUICE_TRY(write_state(t.unit, w.kind, r, w.first, w.numel, *piece, window));
    }
    if (w.kind == StateKind::parameter)
      SLUICE_TRY(copy_to_residents(t.unit, map.begin(t.unit, t.shard) + w.first, data));
    return watch ? watch(static_cast<double>(done += w.numel) / static_cast<double>(all)) : success();
  };
  SLUICE_TRY(source.scan(next, put));
  return window.finish();
}

}  // namespace sluice
