#include "src/train/engine.h"

#include <algorithm>
#include <cstring>

#include "io/checksum.h"
#include "sluice/adamw.h"
#include "src/comm/in_process.h"
#include "src/model/init.h"
#include "src/train/hugging_face.h"

namespace sluice {
namespace {

constexpr std::uint64_t piece_numel_max = 1u << 19;
constexpr BufferId none = 0xffffffffu;

std::vector<OptimizerUnit> optimizer_units(const Workload& w) {
  std::vector<OptimizerUnit> units;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    OptimizerUnit o;
    for (const TensorSpec& t : w.model->units[u].tensors)
      o.segments.push_back({t.offset, t.numel, t.decay ? 1.0f : 0.0f, t.lr_scale, t.trainable});
    for (RankId r = 0; r < w.ranks; ++r) o.shard_begin.push_back(r * w.shard_numel(static_cast<UnitId>(u)));
    units.push_back(std::move(o));
  }
  return units;
}

}  // namespace

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const Prepared& run, StepSource& source, bool record_timeline) {
  std::unique_ptr<Engine> engine(new Engine(run));
  SLUICE_TRY(engine->reserve());
  engine->index_buffers();
  SLUICE_TRY(engine->build_executor(source, record_timeline));
  return engine;
}

Status Engine::reserve() {
  const Workload& w = run_.workload;
  const TierBytes& needs = run_.search.needs;
  std::vector<ArenaSpec> arenas;
  for (RankId r = 0; r < w.ranks; ++r) {
    arenas.push_back({Tier::device, r, needs.device});
    arenas.push_back({Tier::host, r, needs.host});
    arenas.push_back({Tier::nvme, r, needs.nvme});
  }
  // The swap file first: it says no before any memory is taken.
  if (needs.nvme > 0) {
    SwapOptions swap;
    swap.directories = run_.config.nvme;
    swap.bytes = SwapStore::file_bytes(arenas);
    SLUICE_ASSIGN(swap_, SwapFile::create(swap));
    storage_ = swap_.description();
  }
  SLUICE_ASSIGN(Memory memory, Memory::create(arenas, device_));
  memory_ = std::make_unique<Memory>(std::move(memory));
  if (needs.nvme > 0) {
    QueueOptions queue;
    SLUICE_ASSIGN(queue.backend, parse_io_backend(run_.config.io_backend));
    queue.depth = static_cast<std::size_t>(run_.config.queue_depth);
    SLUICE_ASSIGN(store_, SwapStore::create(swap_, arenas, *memory_, queue));
    SLUICE_TRY(store_->bind(run_.main));
  }
  piece_numel_ = std::min(run_.search.schedule.tile_numel, piece_numel_max);
  bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, piece_numel_ * 4)));
  return success();
}

void Engine::index_buffers() {
  const Workload& w = run_.workload;
  homes_.assign(w.model->units.size() * state_names.size() * w.ranks, none);
  residents_.assign(w.model->units.size() * w.ranks, none);
  for (BufferId id = 0; id < run_.main.buffers.size(); ++id) {
    const Buffer& b = run_.main.buffers[id];
    if (b.unit < 0 || b.life != Life::persistent) continue;
    if (b.tier == Tier::device) {
      residents_[static_cast<std::size_t>(b.unit) * w.ranks + b.rank] = id;
    } else {
      home(b.unit, b.state, b.rank) = id;
    }
  }
}

BufferId& Engine::home(UnitId unit, StateKind kind, RankId rank) {
  return homes_[(static_cast<std::size_t>(unit) * state_names.size() + static_cast<std::size_t>(kind)) *
                    run_.workload.ranks +
                rank];
}

Status Engine::build_executor(StepSource& source, bool record_timeline) {
  const Workload& w = run_.workload;
  const RunConfig& c = run_.config;
  rope_ = make_rope_table(w.model->config, w.kv_capacity > 0 ? w.kv_capacity : w.shape.sequence);
  ExecutorParts parts;
  parts.memory = memory_.get();
  parts.store = store_.get();
  for (RankId r = 0; r < w.ranks; ++r) {
    backends_.push_back(
        std::make_unique<CpuBackend>(*w.model, rope_, CpuBackend::Options{w.shape, w.dtype, w.threads, w.kv_capacity}));
    parts.backends.push_back(backends_.back().get());
  }
  if (w.ranks > 1) {
    communicator_ = std::make_unique<InProcessCommunicator>(w.ranks);
    parts.communicator = communicator_.get();
  }
  parts.source = &source;
  parts.units = optimizer_units(w);
  ExecutorOptions options;
  options.optimizer_threads =
      c.optimizer_threads > 0 ? c.optimizer_threads : std::max(1, run_.profile.optimizer_threads);
  options.dtype = w.dtype;
  options.record_timeline = record_timeline;
  options.delay_seed = c.delay_seed;
  executor_ = std::make_unique<Executor>(std::move(parts), options);
  return success();
}

std::uint64_t Engine::state_element_bytes(StateKind kind) const {
  if (kind == StateKind::parameter) return dtype_bytes(run_.workload.dtype);
  if (kind == StateKind::remainder) return run_.workload.dtype == Dtype::bf16 ? 2 : 0;
  return 4;
}

Status Engine::visit_state(UnitId unit, StateKind kind, const Visit& visit) {
  const Workload& w = run_.workload;
  const std::uint64_t numel = w.model->units[static_cast<std::size_t>(unit)].numel;
  const std::uint64_t shard = w.shard_numel(unit), size = state_element_bytes(kind);
  for (RankId r = 0; r < w.ranks; ++r) {
    const BufferId id = home(unit, kind, r);
    const Buffer& b = run_.main.buffers[id];
    for (std::uint64_t at = 0; at < shard && r * shard + at < numel; at += piece_numel_) {
      const std::uint64_t n = std::min(piece_numel_, shard - at);
      std::span<std::byte> data(bounce_.get(), n * size);
      if (b.tier == Tier::host) {
        data = {host(r, b) + at * size, n * size};
      } else {
        SLUICE_TRY(store_->read(id, Slot::current, at * size, data));
      }
      const std::uint64_t first = r * shard + at;
      SLUICE_TRY(visit(first, data.first(std::min(n, numel - first) * size)));
    }
  }
  return success();
}

Status Engine::write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first,
                           std::span<const std::byte> data) {
  const BufferId id = home(unit, kind, rank);
  if (id == none) return success();
  const Buffer& b = run_.main.buffers[id];
  const std::uint64_t at = first * state_element_bytes(kind);
  if (b.tier == Tier::host) {
    std::memcpy(host(rank, b) + at, data.data(), data.size());
    return success();
  }
  std::memcpy(bounce_.get(), data.data(), data.size());
  return store_->write(id, Slot::current, at, {bounce_.get(), data.size()});
}

void Engine::copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters) {
  for (RankId r = 0; r < run_.workload.ranks; ++r) {
    const BufferId id = residents_[static_cast<std::size_t>(unit) * run_.workload.ranks + r];
    if (id == none) continue;
    std::byte* to = memory_->at(Tier::device, r, run_.main.buffers[id].offset);
    device_.copy(to + first * state_element_bytes(StateKind::parameter), parameters.data(), parameters.size());
  }
}

/// Split fp32 weights into parameter and remainder, clear the moments. `first` is within the rank's shard.
Status Engine::store_weights(UnitId unit, RankId rank, std::uint64_t first, std::span<const float> weights) {
  const Workload& w = run_.workload;
  const std::uint64_t logical = rank * w.shard_numel(unit) + first;
  if (w.dtype == Dtype::bf16) {
    std::vector<bf16> parameter(weights.size());
    std::vector<std::int16_t> remainder(weights.size());
    split_master(weights.data(), parameter.data(), remainder.data(), static_cast<std::int64_t>(weights.size()));
    SLUICE_TRY(write_state(unit, StateKind::parameter, rank, first, std::as_bytes(std::span(parameter))));
    SLUICE_TRY(write_state(unit, StateKind::remainder, rank, first, std::as_bytes(std::span(remainder))));
    copy_to_residents(unit, logical, std::as_bytes(std::span(parameter)));
  } else {
    SLUICE_TRY(write_state(unit, StateKind::parameter, rank, first, std::as_bytes(weights)));
    copy_to_residents(unit, logical, std::as_bytes(weights));
  }
  const std::vector<float> zero(weights.size(), 0.0f);
  SLUICE_TRY(write_state(unit, StateKind::exp_avg, rank, first, std::as_bytes(std::span(zero))));
  SLUICE_TRY(write_state(unit, StateKind::exp_avg_sq, rank, first, std::as_bytes(std::span(zero))));
  // The first step reads the gradient that would wait for its update, though nothing is pending.
  return write_state(unit, StateKind::gradient, rank, first, std::as_bytes(std::span(zero)));
}

Status Engine::initialize(const std::string& init, std::uint64_t seed) {
  const Workload& w = run_.workload;
  HuggingFaceWeights source;
  if (!init.empty()) {
    SLUICE_ASSIGN(source, HuggingFaceWeights::open(init, *w.model));
  }
  std::vector<float> weights;
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u) {
    const UnitSpec& spec = w.model->units[static_cast<std::size_t>(u)];
    for (RankId r = 0; r < w.ranks; ++r) {
      for (std::uint64_t at = 0; at < w.shard_numel(u); at += piece_numel_) {
        weights.assign(std::min(piece_numel_, w.shard_numel(u) - at), 0.0f);
        const std::uint64_t first = r * w.shard_numel(u) + at;
        const std::uint64_t n = first < spec.numel ? std::min<std::uint64_t>(weights.size(), spec.numel - first) : 0;
        const std::span<float> part(weights.data(), n);
        if (init.empty()) {
          initial_weights(spec, seed, first, part);
        } else {
          SLUICE_TRY(source.read(spec, first, part));
        }
        SLUICE_TRY(store_weights(u, r, at, weights));
      }
    }
  }
  return success();
}

Result<std::uint64_t> Engine::state_hash() {
  StreamingChecksum sum;
  for (UnitId u = 0; u < static_cast<UnitId>(run_.workload.model->units.size()); ++u) {
    for (StateKind k : {StateKind::parameter, StateKind::remainder, StateKind::exp_avg, StateKind::exp_avg_sq}) {
      if (home(u, k, 0) == none) continue;
      SLUICE_TRY(visit_state(u, k, [&](std::uint64_t, std::span<const std::byte> data) {
        sum.add(data);
        return success();
      }));
    }
  }
  return sum.value();
}

}  // namespace sluice
