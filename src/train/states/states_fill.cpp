// How the states of a run get where they lie: new ones, and those that it has left.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "sluice/adamw.h"
#include "src/model/init.h"
#include "src/train/states/hugging_face.h"
#include "src/train/states/states.h"

namespace sluice {

Status States::initialize(const std::string& init, std::uint64_t seed, const Watch& watch) {
  const Workload& w = run_.workload;
  HuggingFaceWeights source;
  std::unique_ptr<WeightStream> stream;
  if (!init.empty()) {
    SLUICE_ASSIGN(source, HuggingFaceWeights::open(init, run_.model));
    SLUICE_ASSIGN(stream, WeightStream::open(source, pieces(), w.dtype, w.split));
  }
  SLUICE_TRY(clear_states(false));
  SwapWindow window(piece_numel_ * 4);
  std::vector<float> random;
  std::uint64_t done = 0, total = 0;
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u)
    for (RankId r = here_.first; r < here_.end(); ++r)
      if (stages_.has(r, u)) total += w.shard_map().content_numel(u, w.shard_map().shard_of(r));
  WeightPieces all = pieces();
  while (const std::optional<WeightPiece> piece = all.next()) {
    WeightValues weights;
    if (stream != nullptr) {
      SLUICE_ASSIGN(weights, stream->next());
    } else {
      random.assign(piece->numel, 0.0f);
      const std::span<float> content = std::span(random).first(piece->content_numel);
      if (w.split != nullptr)
        initial_weights(*w.split, piece->part, piece->unit, seed, piece->first_of_part, content);
      else
        initial_weights(w.model->units[static_cast<std::size_t>(piece->unit)], seed, piece->first, content);
      weights = std::span<const float>(random);
    }
    SLUICE_TRY(store_weights(piece->unit, piece->rank, piece->at, weights, window));
    done += piece->content_numel;
    if (watch) SLUICE_TRY(watch(static_cast<double>(done) / static_cast<double>(total)));
  }
  return window.finish();
}

/// Split fp32 weights into parameter and remainder; bf16 have none, and memory of a new engine is zero already. `first`
/// is within the rank's shard.
Status States::store_weights(UnitId unit, RankId rank, std::uint64_t first, const WeightValues& weights,
                             SwapWindow& window) {
  const Workload& w = run_.workload;
  const std::uint64_t n = weights.size();
  struct Target {
    std::byte* data;
    SwapWindow::Piece* piece;  ///< that it is of, to be written from; null where data is the home
  };
  const auto target = [&](StateKind kind) -> Result<Target> {
    if (std::byte* const place = only_home(unit, kind, rank, first); place != nullptr) return Target{place, nullptr};
    SLUICE_ASSIGN(SwapWindow::Piece * piece, window.take());
    return Target{piece->data(), piece};
  };
  const auto put = [&](StateKind kind, const Target& to) {
    return to.piece == nullptr ? success() : write_state(unit, kind, rank, first, n, *to.piece, window);
  };
  SLUICE_ASSIGN(const Target parameter, target(StateKind::parameter));
  if (w.dtype == Dtype::bf16) {
    SLUICE_ASSIGN(const Target remainder, target(StateKind::remainder));
    auto* const remainders = reinterpret_cast<std::int16_t*>(remainder.data);
    if (weights.dtype() == Dtype::bf16) {  // nothing remains
      std::memcpy(parameter.data, weights.bytes().data(), weights.bytes().size());
      if (remainder.piece != nullptr) std::fill_n(remainders, n, std::int16_t{0});
    } else {
      split_master(weights.as_f32().data(), reinterpret_cast<bf16*>(parameter.data), remainders,
                   static_cast<std::int64_t>(n));
    }
    SLUICE_TRY(put(StateKind::remainder, remainder));
  } else {
    std::memcpy(parameter.data, weights.bytes().data(), weights.bytes().size());
  }
  const ShardMap map = w.shard_map();
  SLUICE_TRY(copy_to_residents(unit, map.begin(unit, map.shard_of(rank)) + first,
                               {parameter.data, state_bytes(StateKind::parameter, n)}));
  return put(StateKind::parameter, parameter);
}

/// Where elements of a shard's state can be written at once: its home in memory, if nothing of it goes to the drive.
std::byte* States::only_home(UnitId unit, StateKind kind, RankId rank, std::uint64_t first) {
  const BufferId id = table(unit).home(unit, kind);
  const bool in_memory =
      id != no_buffer && buffer(unit, id).tier == Tier::host && table(unit).kept(unit, kind) == no_buffer;
  return in_memory ? host(rank, buffer(unit, id)) + state_bytes(kind, first) : nullptr;
}

Status States::write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                           SwapWindow::Piece& piece, SwapWindow& window) {
  const BufferId id = table(unit).home(unit, kind);
  if (id == no_buffer) return success();
  const std::uint64_t at = state_bytes(kind, first), bytes = state_bytes(kind, first + numel) - at;
  const Buffer& b = buffer(unit, id);
  if (b.tier == Tier::host) std::memcpy(host(rank, b) + at, piece.data(), bytes);
  const BufferId drive = table(unit).kept(unit, kind);
  return drive == no_buffer ? success() : window.write(piece, *store(rank), drive, Slot::current, at, bytes);
}

/// The moments, and the gradient that would wait for its update: the first step reads it, though nothing is pending.
/// Of a new engine, where not the gradients only are meant, memory is zero already: its pages are new.
Status States::clear_states(bool gradients_only) {
  for (RankId r = here_.first; r < here_.end(); ++r) {
    const std::vector<Buffer>& buffers = run_.stage_of_rank(r).main.buffers;
    for (BufferId id = 0; id < buffers.size(); ++id) {
      const Buffer& b = buffers[id];
      if (b.holds != Holds::home && b.holds != Holds::mirror) continue;
      const bool moment = b.state == StateKind::exp_avg || b.state == StateKind::exp_avg_sq;
      if (b.state != StateKind::gradient && (!moment || gradients_only)) continue;
      if (b.tier == Tier::nvme && !gradients_only) store(r)->assume_zero(id, Slot::current);
      if (b.tier == Tier::nvme && gradients_only) SLUICE_TRY(store(r)->clear(id));
      if (b.tier == Tier::host && gradients_only) std::memset(host(r, b), 0, b.bytes);
    }
  }
  return success();
}

Status States::copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters) {
  const BufferId id = table(unit).resident(unit);
  if (id == no_buffer) return success();
  const ShardMap map = run_.workload.shard_map();
  const std::uint64_t full = map.full_numel(unit);
  for (RankId r = here_.first; r < here_.end(); ++r) {
    if (!stages_.has(r, unit) || map.part_of_rank(r) != first / full) continue;
    const RankPlace& rank = at(r);
    std::byte* to = rank.memory->at(Tier::device, buffer(unit, id).offset);
    SLUICE_TRY(rank.device->memory().copy(to + state_bytes(StateKind::parameter, first % full), parameters.data(),
                                          parameters.size()));
  }
  return success();
}

Status States::share_residents() {
  if (is_alone()) return success();
  const RankId self = here_.first;
  Communicator& others = world_->communicator(self);
  SLUICE_TRY(others.prepare(run_.main().topology.at(self), std::array{shard_axes}));
  DeviceMemory& device = at(self).device->memory();
  constexpr std::size_t met_bytes = 4u << 20;
  std::vector<std::byte> met;
  for (const Buffer& b : run_.stage_of_rank(self).main.buffers) {
    if (b.holds != Holds::resident) continue;
    const std::span<std::byte> whole{at(self).memory->at(Tier::device, b.offset), b.bytes};
    if (!run_.workload.meets_in_host) {
      SLUICE_TRY(others.all_gather(0, whole));
      continue;
    }
    // In pieces of all parts, so that little memory does.
    const std::size_t members = others.members(0), own = others.position(0), part = whole.size() / members;
    for (std::size_t at = 0; at < part; at += met_bytes / members) {
      const std::size_t bytes = std::min(met_bytes / members, part - at);
      met.resize(bytes * members);
      SLUICE_TRY(device.copy(met.data() + own * bytes, whole.data() + own * part + at, bytes));
      SLUICE_TRY(others.all_gather(0, met));
      for (std::size_t m = 0; m < members; ++m)
        if (m != own) SLUICE_TRY(device.copy(whole.data() + m * part + at, met.data() + m * bytes, bytes));
    }
  }
  return success();
}

void States::take_slots(RankId rank, const CommitRecord& record) {
  store(rank)->set_parity(record.parity);
  std::span<const std::uint64_t> sums(record.sums);
  for (BufferSums* table : store(rank)->durable_sums()) {
    const std::span<std::uint64_t> values = table->slots[record.parity].values();
    std::copy_n(sums.begin(), values.size(), values.begin());
    sums = sums.subspan(values.size());
  }
}

Status States::restore(RankId rank, const CommitRecord& record, const Watch& watch) {
  take_slots(rank, record);
  SLUICE_TRY(load_slots(rank, Load::all, watch));
  return rank + 1 == here_.end() && !only_reads_ ? clear_states(true) : success();
}

Status States::load_slots(RankId rank, Load load, const Watch& watch) {
  /// What a durable buffer's bytes fill beside being verified.
  struct Target {
    UnitId unit;
    StateKind kind;
    std::byte* host;  ///< null where the state's home is the drive
    bool resident;
  };
  std::vector<BufferId> buffers;
  std::map<BufferId, Target> targets;
  std::uint64_t done = 0, total = 0;
  const ShardMap map = run_.workload.shard_map();
  SLUICE_TRY(each_shard([&](UnitId u, StateKind kind, RankId first_rank) -> Status {
    if (!stages_.has(rank, u) || map.shard_of(first_rank) != map.shard_of(rank)) return success();
    const BufferId drive = table(u).kept(u, kind);
    const Buffer& place = buffer(u, table(u).home(u, kind));
    const bool in_host = place.tier == Tier::host && !only_reads_ && load != Load::residents;
    std::byte* const to = in_host ? host(rank, place) : nullptr;
    const bool resident = !only_reads_ && kind == StateKind::parameter && table(u).resident(u) != no_buffer;
    if (load != Load::all && to == nullptr && !resident) return success();
    buffers.push_back(drive);
    targets[drive] = {u, kind, to, resident};
    total += buffer(u, drive).bytes;
    return success();
  }));
  SwapWindow window(piece_numel_ * 4);
  return window.scan(
      *store(rank), buffers, [&](const SwapWindow::Part& part, std::span<const std::byte> data) -> Status {
        const Target& target = targets.at(part.buffer);
        if (target.host != nullptr) std::memcpy(target.host + part.offset_bytes, data.data(), data.size());
        if (target.resident)
          SLUICE_TRY(copy_to_residents(
              target.unit, map.begin(target.unit, map.shard_of(rank)) + part.offset_bytes / state_bytes(target.kind, 1),
              data));
        return watch ? watch(static_cast<double>(done += data.size()) / static_cast<double>(total)) : success();
      });
}

Result<States::Changed> States::count_changed(RankId rank, const CommitRecord& record) {
  take_slots(rank, record);
  Changed changed;
  const ShardMap map = run_.workload.shard_map();
  SLUICE_TRY(each_shard([&](UnitId u, StateKind kind, RankId first_rank) -> Status {
    if (!stages_.has(rank, u) || map.shard_of(first_rank) != map.shard_of(rank)) return success();
    const BufferId drive = table(u).kept(u, kind);
    SwapWindow window(piece_numel_ * 4);
    const auto verify = [](const SwapWindow::Part&, std::span<const std::byte>) { return success(); };
    const Status read = window.scan(*store(rank), std::span(&drive, 1), verify);
    if (!read.ok() && read.error().code != ErrorCode::damaged) return read.error();
    ++changed.all;
    changed.states += read.ok() ? 0 : 1;
    return success();
  }));
  return changed;
}

Status States::roll_back(bool keeps_gradients) {
  const auto load = [&]() -> Status {
    for (RankId r = here_.first; r < here_.end(); ++r) SLUICE_TRY(load_slots(r, Load::copies, {}));
    return keeps_gradients ? success() : clear_states(true);
  };
  SLUICE_TRY(agree(*world_, load()));
  return agree(*world_, share_residents());
}

Status States::load_residents() {
  const auto load = [&]() -> Status {
    for (RankId r = here_.first; r < here_.end(); ++r) SLUICE_TRY(load_slots(r, Load::residents, {}));
    return success();
  };
  SLUICE_TRY(agree(*world_, load()));
  return agree(*world_, share_residents());
}

}  // namespace sluice
