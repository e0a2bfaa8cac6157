#include "src/train/engine.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "offload/plan/world.h"
#include "sluice/adamw.h"
#include "src/comm/in_process.h"
#include "src/model/init.h"
#include "src/schedule/build.h"
#include "src/train/hugging_face.h"
#include "src/train/run_directory.h"

namespace sluice {
namespace {

constexpr std::uint64_t piece_numel_max = 1u << 19;
constexpr BufferId none = 0xffffffffu;

std::vector<OptimizerUnit> optimizer_units(const Workload& w, RankId rank) {
  std::vector<OptimizerUnit> units;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    OptimizerUnit o;
    for (const TensorSpec& t : w.model->units[u].tensors)
      o.segments.push_back({t.offset, t.numel, t.decay ? 1.0f : 0.0f, t.lr_scale, t.trainable, t.index});
    const ShardMap map = w.shard_map();
    o.shard_begin = map.begin(static_cast<UnitId>(u), map.shard_of(rank));
    units.push_back(std::move(o));
  }
  return units;
}

/// Every rank has a swap file of its own.
SwapOptions swap_options(const Prepared& run, std::optional<std::uint64_t> run_id, RankId rank) {
  SwapOptions swap;
  swap.directories = run.config.nvme;
  swap.weights = run.profile.drive.stripe_weights;
  swap.bytes = padded_bytes(run.search.needs.nvme);
  if (run_id) swap.name = swap_name(*run_id, rank);
  return swap;
}

}  // namespace

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const Prepared& run, StepSource& source, const Options& options) {
  std::unique_ptr<World> own;
  if (options.world == nullptr) own = std::make_unique<InProcessWorld>(run.workload.ranks());
  World* const world = options.world == nullptr ? own.get() : options.world;
  std::unique_ptr<Engine> engine(new Engine(run, world->here(), world));
  engine->own_world_ = std::move(own);
  const auto make = [&]() -> Status {
    SLUICE_TRY(engine->reserve(options));
    engine->index_buffers();
    engine->build_ranks();
    return engine->build_executors(source, options);
  };
  if (const Status made = make(); !made.ok()) {
    if (!options.swap_exists) engine->discard_swap();
    return made.error();
  }
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::open_states(const Prepared& run, std::optional<std::uint64_t> swap_run_id) {
  const RankRange all{0, run.workload.shards()};  // replicas have the same
  std::unique_ptr<Engine> engine(new Engine(run, all, nullptr));
  engine->states_only_ = true;
  SLUICE_ASSIGN(std::unique_ptr<Device> cpu, Device::open("cpu"));
  DeviceMemory& host = cpu->memory();
  engine->devices_.push_back(std::move(cpu));
  engine->ranks_.resize(all.count);
  for (RankId r = 0; r < all.end(); ++r) {
    Rank& rank = engine->at(r);
    if (swap_run_id) {
      SLUICE_ASSIGN(rank.swap, SwapFile::open_existing(swap_options(run, swap_run_id, r)));
    }
    SLUICE_ASSIGN(Memory memory, Memory::create({}, host));
    rank.memory = std::make_unique<Memory>(std::move(memory));
  }
  SLUICE_TRY(engine->open_stores());
  engine->index_buffers();
  return engine;
}

Status Engine::check_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks) {
  for (RankId r = ranks.first; r < ranks.end(); ++r)
    if (const auto opened = SwapFile::open_existing(swap_options(run, run_id, r)); !opened.ok()) return opened.error();
  return success();
}

Status Engine::reserve(const Options& options) {
  const TierBytes& needs = run_.search.needs;
  ranks_.resize(here_.count);
  // Swap files first: they say no before any memory is taken.
  for (RankId r = here_.first; r < here_.end() && needs.nvme > 0; ++r) {
    const SwapOptions swap = swap_options(run_, options.swap_run_id, r);
    // One that is there without a commit record is of an attempt that never began.
    if (!swap.name.empty() && !options.swap_exists) SLUICE_TRY(SwapFile::remove(swap));
    SLUICE_ASSIGN(at(r).swap, options.swap_exists ? SwapFile::open_existing(swap) : SwapFile::create(swap));
  }
  SLUICE_TRY(open_devices());
  for (RankId r = here_.first; r < here_.end(); ++r) {
    const std::array arenas{ArenaSpec{Tier::device, needs.device}, ArenaSpec{Tier::host, needs.host}};
    Result<Memory> memory = Memory::create(arenas, at(r).device->memory());
    if (!memory.ok()) return here_.count > 1 ? memory.error().in("rank " + std::to_string(r)) : memory.error();
    at(r).memory = std::make_unique<Memory>(*std::move(memory));
  }
  return open_stores();
}

/// Ranks on one device share it.
Status Engine::open_devices() {
  const RunConfig& c = run_.config;
  SLUICE_ASSIGN(const int count, count_devices(c.device));
  std::map<std::string, Device*> opened;
  for (RankId r = here_.first; r < here_.end(); ++r) {
    const std::string name = c.ranks == 1 ? c.device : device_of_rank(c.device, count, r % ranks_of_machine(c));
    Device*& device = opened[name];
    if (device == nullptr) {
      SLUICE_ASSIGN(devices_.emplace_back(), Device::open(name));
      device = devices_.back().get();
      // What is measured and chosen for one would be wrong for the other, and give other bits.
      if (device->kind() != run_.workload.device)
        return bad_request("rank " + std::to_string(r) + " would compute on another kind of device (" +
                           device->description() + ") than rank 0 (" + run_.workload.device +
                           "); name one of a kind with --device cuda:N");
    }
    at(r).device = device;
  }
  return success();
}

Status Engine::open_stores() {
  if (!ranks_.front().swap.files().empty()) {
    const DriveProfile& drive = run_.profile.drive;
    const RunConfig& c = run_.config;
    QueueOptions queue;
    SLUICE_ASSIGN(queue.backend, parse_io_backend(c.io_backend.empty() ? drive.backend : c.io_backend));
    queue.depth = c.queue_depth > 0 ? static_cast<std::size_t>(c.queue_depth) : drive.depth;
    queue.faults = c.faults;
    for (Rank& rank : ranks_) {
      SLUICE_ASSIGN(rank.store, SwapStore::create(rank.swap, 0, rank.swap.bytes(), *rank.memory, queue));
      SLUICE_TRY(rank.store->bind(run_.main));
    }
    storage_ = ranks_.front().swap.description() + "; " + ranks_.front().store->queue(IoOp::read).description();
    if (here_.count > 1) storage_ += "; of each of " + std::to_string(here_.count) + " ranks";
  }
  moments_ = MomentLayout::of(run_.workload.moments, run_.search.schedule.tile_numel);
  piece_numel_ = std::min(run_.search.schedule.tile_numel, piece_numel_max);
  return success();
}

void Engine::index_buffers() {
  const std::size_t units = run_.model.units.size();
  homes_.assign(units * state_names.size(), none);
  mirrors_ = homes_;
  residents_.assign(units, none);
  for (BufferId id = 0; id < run_.main.buffers.size(); ++id) {
    const Buffer& b = run_.main.buffers[id];
    if (b.unit < 0 || b.life != Life::persistent) continue;
    if (b.tier == Tier::device) {
      residents_[static_cast<std::size_t>(b.unit)] = id;
    } else {
      // A durable copy comes after the home that it is of.
      BufferId& place = home(b.unit, b.state);
      (place == none ? place : mirrors_[static_cast<std::size_t>(&place - homes_.data())]) = id;
    }
  }
}

BufferId& Engine::home(UnitId unit, StateKind kind) {
  return homes_[static_cast<std::size_t>(unit) * state_names.size() + static_cast<std::size_t>(kind)];
}

BufferId Engine::kept(UnitId unit, StateKind kind) {
  const BufferId& place = home(unit, kind);
  if (place == none || run_.main.buffers[place].tier == Tier::nvme) return place;
  return mirrors_[static_cast<std::size_t>(&place - homes_.data())];
}

/// Where the rank's kernels find the rotary tables: the host's, or copied to where the plans have them on the device.
Result<RopeView> Engine::put_rope(RankId rank) {
  RopeView view = view_of(rope_);
  const std::span cos(std::as_bytes(std::span(rope_.cos))), sin(std::as_bytes(std::span(rope_.sin)));
  for (const Buffer& b : run_.main.buffers) {
    if (b.tier != Tier::device || b.name != rope_buffer_name) continue;
    std::byte* const to = at(rank).memory->at(Tier::device, b.offset);
    SLUICE_TRY(at(rank).device->memory().copy(to, cos.data(), cos.size()));
    SLUICE_TRY(at(rank).device->memory().copy(to + cos.size(), sin.data(), sin.size()));
    view.cos = reinterpret_cast<const float*>(to);
    view.sin = reinterpret_cast<const float*>(to + cos.size());
  }
  return view;
}

/// The plans of the ranks of here, which differ in where a rank's own parts lie.
void Engine::build_ranks() {
  const Schedule& schedule = run_.search.schedule;
  for (const StepPlan* plan : {&run_.main, &run_.flush, &run_.evaluate}) {
    if (plan->ops.empty()) continue;
    std::vector<const StepPlan*>& of_ranks = plans_[static_cast<std::size_t>(plan->kind)];
    for (RankId r = here_.first; r < here_.end(); ++r) {
      if (r != 0) {
        other_plans_.push_back(std::make_unique<StepPlan>(build_alike(*plan, run_.workload, schedule, r)));
        SLUICE_CHECK(plan_signature(*other_plans_.back()) == plan_signature(*plan), "rank %u does not run alike", r);
      }
      of_ranks.push_back(r == 0 ? plan : other_plans_.back().get());
    }
  }
}

Status Engine::begin(PlanKind kind) { return team_->begin(plans_[static_cast<std::size_t>(kind)]); }

Status Engine::build_executors(StepSource& source, const Options& engine_options) {
  const Workload& w = run_.workload;
  const RunConfig& c = run_.config;
  rope_ = make_rope_table(w.model->config, w.positions());
  ExecutorOptions options;
  options.optimizer_threads =
      c.optimizer_threads > 0
          ? c.optimizer_threads
          : std::max(1, run_.profile.device ? run_.profile.device->optimizer_threads : run_.profile.optimizer_threads);
  options.dtype = w.dtype;
  options.moments = moments_;
  options.record_timeline = engine_options.record_timeline;
  options.delay_seed = c.delay_seed;
  std::vector<std::unique_ptr<Executor>> executors;
  for (RankId r = here_.first; r < here_.end(); ++r) {
    SLUICE_ASSIGN(const RopeView rope, put_rope(r));
    SLUICE_ASSIGN(
        at(r).backend,
        at(r).device->make_backend(*w.model, rope, {w.shape, w.dtype, w.threads, w.kv_capacity, w.documents, run_.kernels}));
    ExecutorParts parts;
    parts.memory = at(r).memory.get();
    parts.store = at(r).store.get();
    parts.backend = at(r).backend.get();
    parts.communicator = w.ranks() > 1 ? &world_->communicator(r) : nullptr;
    parts.source = &source;
    parts.commit_sink = engine_options.commit_sink;
    parts.units = optimizer_units(w, r);
    executors.push_back(std::make_unique<Executor>(std::move(parts), options));
  }
  team_ = std::make_unique<RankTeam>(std::move(executors));
  return success();
}

bool Engine::grouped(StateKind kind) const {
  return moments_.format == MomentFormat::int8 && (kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq);
}

std::uint64_t Engine::state_bytes(StateKind kind, std::uint64_t numel) const {
  switch (kind) {
    case StateKind::parameter: return numel * dtype_bytes(run_.workload.dtype);
    case StateKind::remainder: return numel * (run_.workload.dtype == Dtype::bf16 ? 2 : 0);
    case StateKind::gradient: return numel * 4;
    default: return moments_.bytes(numel);
  }
}

std::uint64_t Engine::stream_bytes(StateKind kind, std::uint64_t numel) const {
  return grouped(kind) ? numel / moment_page_numel * MomentLayout::stream_page_bytes : state_bytes(kind, numel);
}

Status Engine::write_state(UnitId unit, StateKind kind, RankId rank, std::uint64_t first, std::uint64_t numel,
                           SwapWindow::Piece& piece, SwapWindow& window) {
  const BufferId id = home(unit, kind);
  if (id == none) return success();
  const std::uint64_t at = state_bytes(kind, first), bytes = state_bytes(kind, first + numel) - at;
  const Buffer& b = run_.main.buffers[id];
  if (b.tier == Tier::host) std::memcpy(host(rank, b) + at, piece.data(), bytes);
  const BufferId drive = kept(unit, kind);
  return drive == none ? success() : window.write(piece, *store(rank), drive, Slot::current, at, bytes);
}

/// The moments, and the gradient that would wait for its update: the first step reads it, though nothing is pending.
/// Of a new engine, where not the gradients only are meant, memory is zero already: its pages are new.
Status Engine::clear_states(bool gradients_only) {
  for (const auto* ids : {&homes_, &mirrors_})
    for (const BufferId id : *ids) {
      if (id == none) continue;
      const Buffer& b = run_.main.buffers[id];
      const bool moment = b.state == StateKind::exp_avg || b.state == StateKind::exp_avg_sq;
      if (b.state != StateKind::gradient && (!moment || gradients_only)) continue;
      for (RankId r = here_.first; r < here_.end(); ++r) {
        if (b.tier == Tier::nvme && !gradients_only) store(r)->assume_zero(id, Slot::current);
        if (b.tier == Tier::nvme && gradients_only) SLUICE_TRY(store(r)->clear(id));
        if (b.tier == Tier::host && gradients_only) std::memset(host(r, b), 0, b.bytes);
      }
    }
  return success();
}

Status Engine::copy_to_residents(UnitId unit, std::uint64_t first, std::span<const std::byte> parameters) {
  const BufferId id = residents_[static_cast<std::size_t>(unit)];
  if (id == none) return success();
  for (const Rank& rank : ranks_) {
    std::byte* to = rank.memory->at(Tier::device, run_.main.buffers[id].offset);
    SLUICE_TRY(rank.device->memory().copy(
        to + state_bytes(StateKind::parameter, first), parameters.data(), parameters.size()));
  }
  return success();
}

/// Where elements of a shard's state can be written at once: its home in memory, if nothing of it goes to the drive.
std::byte* Engine::only_home(UnitId unit, StateKind kind, RankId rank, std::uint64_t first) {
  const BufferId id = home(unit, kind);
  const bool in_memory = id != none && run_.main.buffers[id].tier == Tier::host && kept(unit, kind) == none;
  return in_memory ? host(rank, run_.main.buffers[id]) + state_bytes(kind, first) : nullptr;
}

/// Split fp32 weights into parameter and remainder; bf16 have none, and memory of a new engine is zero already. `first`
/// is within the rank's shard.
Status Engine::store_weights(UnitId unit, RankId rank, std::uint64_t first, const WeightValues& weights,
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

WeightPieces Engine::pieces() const { return {run_.model, run_.workload.shard_map(), here_, piece_numel_}; }

Status Engine::initialize(const std::string& init, std::uint64_t seed, const Watch& watch) {
  const Workload& w = run_.workload;
  HuggingFaceWeights source;
  std::unique_ptr<WeightStream> stream;
  if (!init.empty()) {
    SLUICE_ASSIGN(source, HuggingFaceWeights::open(init, *w.model));
    SLUICE_ASSIGN(stream, WeightStream::open(source, pieces(), w.dtype));
  }
  SLUICE_TRY(clear_states(false));
  SwapWindow window(piece_numel_ * 4);
  std::vector<float> random;
  std::uint64_t done = 0, total = 0;
  for (UnitId u = 0; u < static_cast<UnitId>(w.model->units.size()); ++u)
    for (RankId r = here_.first; r < here_.end(); ++r)
      total += w.shard_map().content_numel(u, w.shard_map().shard_of(r));
  WeightPieces all = pieces();
  while (const std::optional<WeightPiece> piece = all.next()) {
    WeightValues weights;
    if (stream != nullptr) {
      SLUICE_ASSIGN(weights, stream->next());
    } else {
      random.assign(piece->numel, 0.0f);
      initial_weights(w.model->units[static_cast<std::size_t>(piece->unit)], seed, piece->first,
                      std::span(random).first(piece->content_numel));
      weights = std::span<const float>(random);
    }
    SLUICE_TRY(store_weights(piece->unit, piece->rank, piece->at, weights, window));
    done += piece->content_numel;
    if (watch) SLUICE_TRY(watch(static_cast<double>(done) / static_cast<double>(total)));
  }
  return window.finish();
}

Result<std::vector<std::uint64_t>> Engine::common(std::vector<std::uint64_t> own) const {
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

Status Engine::share_residents() {
  if (is_alone()) return success();
  const RankId self = here_.first;
  Communicator& others = world_->communicator(self);
  SLUICE_TRY(others.prepare(run_.main.topology.at(self), std::array{shard_axes}));
  DeviceMemory& device = at(self).device->memory();
  std::vector<std::byte> met;
  for (const BufferId id : residents_) {
    if (id == none) continue;
    const Buffer& b = run_.main.buffers[id];
    const std::span<std::byte> whole{at(self).memory->at(Tier::device, b.offset), b.bytes};
    if (!run_.workload.meets_in_host) {
      SLUICE_TRY(others.all_gather(0, whole));
      continue;
    }
    met.resize(b.bytes);
    SLUICE_TRY(device.copy(met.data(), whole.data(), b.bytes));
    SLUICE_TRY(others.all_gather(0, met));
    SLUICE_TRY(device.copy(whole.data(), met.data(), b.bytes));
  }
  return success();
}

}  // namespace sluice
