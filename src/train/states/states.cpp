// Everything that a run is, visited, saved and hashed wherever it lies.
#include "src/train/states/states.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "io/checksum.h"
#include "sluice/random.h"

namespace sluice {
namespace {

constexpr std::uint64_t piece_numel_max = 1u << 19;
/// What a run is, besides its data: everything that steps hand to each other.
constexpr std::array saved_kinds{StateKind::parameter, StateKind::remainder, StateKind::exp_avg, StateKind::exp_avg_sq};

}  // namespace

States::States(const Prepared& run, RankRange here, World* world, std::vector<RankPlace> ranks, bool only_reads)
    : run_(run),
      here_(here),
      world_(world),
      ranks_(std::move(ranks)),
      only_reads_(only_reads),
      stages_(run.workload, run.search.schedule),
      moments_(MomentLayout::of(run.workload.moments, run.search.schedule.tile_numel)),
      piece_numel_(std::min(run.search.schedule.tile_numel, piece_numel_max)) {
  for (const StagePlans& stage : run.stages) tables_.emplace_back(stage.main);
}

WeightPieces States::pieces() const {
  // What is only read need not be read of every replica.
  const Workload& w = run_.workload;
  return {*w.model, w.shard_map(), here_, piece_numel_, [this](UnitId u) { return stages_.ranks_of(u); }, only_reads_};
}

bool States::grouped(StateKind kind) const {
  return moments_.format == MomentFormat::int8 && (kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq);
}

std::uint64_t States::state_bytes(StateKind kind, std::uint64_t numel) const {
  switch (kind) {
    case StateKind::parameter: return numel * dtype_bytes(run_.workload.dtype);
    case StateKind::remainder: return numel * (run_.workload.dtype == Dtype::bf16 ? 2 : 0);
    case StateKind::gradient: return numel * dtype_bytes(run_.workload.gradient_dtype);
    default: return moments_.bytes(numel);
  }
}

std::uint64_t States::stream_bytes(StateKind kind, std::uint64_t numel) const {
  return grouped(kind) ? numel / moment_page_numel * MomentLayout::stream_page_bytes : state_bytes(kind, numel);
}

Result<std::vector<std::uint64_t>> States::common(std::vector<std::uint64_t> own) const {
  if (is_alone()) return own;
  SLUICE_ASSIGN(const std::vector<std::string> all,
                world_->exchange({reinterpret_cast<const char*>(own.data()), own.size() * sizeof(std::uint64_t)}));
  std::erase_if(own, [&](std::uint64_t value) {
    const std::string_view bytes(reinterpret_cast<const char*>(&value), sizeof value);
    return !std::ranges::all_of(all, [&](const std::string& text) {
      for (std::size_t at = 0; at < text.size(); at += sizeof value)
        if (std::string_view(text).substr(at, sizeof value) == bytes) return true;
      return false;
    });
  });
  return own;
}

/// Who fails sees the others through, so that none of them waits for it, and then says so.
Status States::visit_states(std::span<const StateKind> kinds, const Visit& visit) {
  if (!is_alone()) SLUICE_TRY(from_leader(*world_, {reinterpret_cast<const char*>(kinds.data()), kinds.size()}));
  SwapWindow window(piece_numel_ * 4);
  Status failed;
  const Visit visit_sound = [&](UnitId u, std::uint64_t first, std::span<const std::byte> data) {
    if (failed.ok()) failed = visit(u, first, data);
    return is_alone() ? failed : success();
  };
  SLUICE_TRY(each_shard([&](UnitId u, StateKind kind, RankId r) -> Status {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) return success();
    const Status shard =
        here_.contains(r) ? visit_shard(u, kind, r, visit_sound, window) : receive_shard(u, r, visit_sound);
    if (failed.ok()) failed = shard;
    return is_alone() ? failed : success();
  }));
  return failed;
}

Status States::lead_visits(const std::function<Status()>& work) {
  if (is_alone()) return work();
  if (here_.first == 0) {
    const Status done = work();
    SLUICE_TRY(from_leader(*world_, ""));  // no more of them
    return agree(*world_, done);
  }
  Status served;
  for (;;) {
    SLUICE_ASSIGN(const std::string asked, from_leader(*world_, ""));
    if (asked.empty()) return agree(*world_, served);
    SwapWindow window(piece_numel_ * 4);
    SLUICE_TRY(each_shard([&](UnitId u, StateKind kind, RankId r) -> Status {
      if (!here_.contains(r) || asked.find(static_cast<char>(kind)) == std::string::npos) return success();
      SLUICE_ASSIGN(const Status sent, send_shard(u, kind, r, window));
      if (served.ok()) served = sent;
      return success();
    }));
  }
}

namespace {

/// In front of a piece of a shard that goes to who leads.
struct PieceHeader {
  std::uint64_t first = 0;  ///< element
  std::uint64_t bytes = 0;  ///< 0: the shard has ended
  std::uint64_t failed = 0;
};

}  // namespace

/// Errors are the transport's; the status is whether the shard could be read.
Result<Status> States::send_shard(UnitId unit, StateKind kind, RankId rank, SwapWindow& window) {
  Status broken;
  const auto send = [&](const PieceHeader& header, std::span<const std::byte> data) {
    broken = world_->send(0, std::as_bytes(std::span(&header, 1)));
    if (broken.ok()) broken = world_->send(0, data);
    return broken;
  };
  const Visit send_piece = [&](UnitId, std::uint64_t first, std::span<const std::byte> data) {
    return data.empty() ? success() : send({first, data.size(), 0}, data);
  };
  const Status visited = visit_shard(unit, kind, rank, send_piece, window);
  if (broken.ok()) static_cast<void>(send({0, 0, visited.ok() ? 0u : 1u}, {}));
  if (!broken.ok()) return broken.error();
  return visited;
}

Status States::receive_shard(UnitId unit, RankId rank, const Visit& visit) {
  std::vector<std::byte> data;
  for (;;) {
    PieceHeader header;
    SLUICE_TRY(world_->receive(rank, std::as_writable_bytes(std::span(&header, 1))));
    if (header.failed != 0) return Error{ErrorCode::cancelled, "rank " + std::to_string(rank) + " has failed"};
    if (header.bytes == 0) return success();
    data.resize(header.bytes);
    SLUICE_TRY(world_->receive(rank, data));
    SLUICE_TRY(visit(unit, header.first, data));
  }
}

Status States::each_shard(const std::function<Status(UnitId, StateKind, RankId)>& visit) {
  const Workload& w = run_.workload;
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u)
    for (const StateKind kind : saved_kinds)
      for (RankId shard = 0; shard < w.shard_map().shards(); ++shard)
        if (table(u).home(u, kind) != no_buffer)
          SLUICE_TRY(visit(u, kind, static_cast<RankId>(stages_.ranks_of(u).first + w.shard_map().rank_of(shard))));
  return success();
}

Status States::visit_shard(UnitId unit, StateKind kind, RankId rank, const Visit& visit_piece, SwapWindow& window) {
  const Visit visit = [&](UnitId u, std::uint64_t at, std::span<const std::byte> data) -> Status {
    if (stop_ != nullptr && stop_->load()) return Error{ErrorCode::cancelled, "stopped by a signal"};
    return visit_piece(u, at, data);
  };
  const ShardMap map = run_.workload.shard_map();
  const BufferId id = only_reads_ ? table(unit).kept(unit, kind) : table(unit).home(unit, kind);
  const Buffer& b = buffer(unit, id);
  const RankId own = map.shard_of(rank);
  const std::uint64_t shard = map.shard_numel(unit), first = map.begin(unit, own),
                      content = map.content_numel(unit, own);
  const auto plain = [&](std::uint64_t offset, std::span<const std::byte> data) -> Status {
    const std::uint64_t bytes = state_bytes(kind, content);
    if (offset >= bytes) return success();
    return visit(unit, first + offset / state_bytes(kind, 1), data.first(std::min(data.size(), bytes - offset)));
  };
  std::vector<std::byte> stream;
  const auto by_groups = [&](std::uint64_t offset, std::span<const std::byte> data) -> Status {
    const std::uint64_t group = moments_.group_numel;
    for (std::uint64_t at = offset / MomentLayout::group_bytes(group) * group; !data.empty() && at < content;
         at += group) {
      const std::uint64_t here = std::min(group, shard - at), meant = std::min(here, content - at);
      stream.resize(stream_bytes(kind, meant));
      moments_.to_stream(data.data(), here, meant, stream.data());
      SLUICE_TRY(visit(unit, first + at, stream));
      data = data.subspan(MomentLayout::group_bytes(here));
    }
    return success();
  };
  const auto each_piece = [&](std::uint64_t offset, std::span<const std::byte> data) -> Status {
    return grouped(kind) ? by_groups(offset, data) : plain(offset, data);
  };
  if (b.tier == Tier::host) return each_piece(0, {host(rank, b), b.bytes});
  return window.scan(*store(rank), std::span(&id, 1),
                     [&](const SwapWindow::Part& part, std::span<const std::byte> data) {
                       return each_piece(part.offset_bytes, data);
                     });
}

Status States::scan_states(std::span<const StateKind> kinds, const VisitPiece& visit) {
  SwapWindow window(piece_numel_ * 4);
  // The same order twice: of what is to be read, and of what has been.
  StatePieces ahead(pieces(), kinds), behind = ahead;
  const auto next = [&]() -> std::optional<SwapWindow::Part> {
    const std::optional<StatePiece> piece = ahead.next();
    if (!piece) return std::nullopt;
    const auto& [weights, kind] = *piece;
    const std::uint64_t begin = state_bytes(kind, weights.at);
    return SwapWindow::Part{store(weights.rank), table(weights.unit).kept(weights.unit, kind), begin,
                            state_bytes(kind, weights.at + weights.numel) - begin};
  };
  return window.scan(
      next, [&](const SwapWindow::Part&, std::span<const std::byte> data) { return visit(*behind.next(), data); });
}

Result<std::uint64_t> States::state_hash() {
  SwapWindow window(piece_numel_ * 4);
  const ShardMap map = run_.workload.shard_map();
  std::vector<std::uint64_t> hashes(run_.workload.replicas());
  const Status hashed = each_shard([&](UnitId u, StateKind kind, RankId first_rank) -> Status {
    const RankId shard = map.shard_of(first_rank);
    for (RankId r = here_.first; r < here_.end(); ++r) {
      if (map.shard_of(r) != shard || !stages_.has(r, u)) continue;
      BlockSums blocks(stream_bytes(kind, shard_grain_numel));
      const auto add = [&](UnitId, std::uint64_t, std::span<const std::byte> data) {
        blocks.add(data);
        return success();
      };
      SLUICE_TRY(visit_shard(u, kind, r, add, window));
      // Padding behind a part would depend on how many ranks share it.
      const std::uint64_t first =
          (map.part_of(shard) * map.unit_numel(u) + map.begin_in_part(u, shard)) / shard_grain_numel;
      const std::vector<std::uint64_t>& values = blocks.close();
      const std::array place{static_cast<std::uint32_t>(u), static_cast<std::uint32_t>(kind)};
      std::uint64_t& hash = hashes[run_.workload.topology.at(r).position(replica_axes)];
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto mixed = philox(values[i], first + i, std::uint64_t{place[0]} << 8 | place[1]);
        hash += std::uint64_t{mixed[0]} << 32 | mixed[1];
      }
    }
    return success();
  });
  if (world_ == nullptr) return hashed.ok() ? Result<std::uint64_t>(hashes.front()) : hashed.error();
  SLUICE_TRY(agree(*world_, hashed));
  SLUICE_TRY(add_up(*world_, hashes));
  for (std::size_t replica = 1; replica < hashes.size(); ++replica)
    if (hashes[replica] != hashes.front())
      return fault("shard group " + std::to_string(replica) + (stages_.count() > 1 ? " of a stage" : "") +
                   " has other states than shard group 0, though both are to be the same: memory or a drive of one of "
                   "their ranks is damaged");
  return hashes.front();
}

}  // namespace sluice
