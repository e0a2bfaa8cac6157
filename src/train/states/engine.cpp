#include "src/train/states/engine.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "offload/plan/world.h"
#include "sluice/adamw.h"
#include "src/comm/in_process.h"
#include "src/model/init.h"
#include "src/schedule/build.h"
#include "src/train/request/arrangement.h"
#include "src/train/run/run_directory.h"
#include "src/train/states/hugging_face.h"

namespace sluice {
namespace {

std::vector<OptimizerUnit> optimizer_units(const Workload& w, RankId rank) {
  std::vector<OptimizerUnit> units;
  for (std::size_t u = 0; u < w.model->units.size(); ++u) {
    OptimizerUnit o;
    const ShardMap map = w.shard_map();
    const std::vector<TensorSpec>& tensors = w.model->units[u].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& t = tensors[i];
      const bool counts = w.split == nullptr || w.split->counts(static_cast<UnitId>(u), i, map.part_of_rank(rank));
      o.segments.push_back({t.offset, t.numel, t.decay ? 1.0f : 0.0f, t.lr_scale, t.trainable, t.index, counts});
    }
    o.shard_begin = map.begin_in_part(static_cast<UnitId>(u), map.shard_of(rank));
    units.push_back(std::move(o));
  }
  return units;
}

SublayerOptions sublayer_options(const Prepared& run, RankId rank) {
  const Workload& w = run.workload;
  SublayerOptions o{w.shape, w.dtype, w.threads, w.kv_capacity, w.documents, 0, true, w.slice_of(rank), run.kernels};
  if (w.split == nullptr) return o;
  const RankId part = w.topology.at(rank).position(tensor_axes);
  o.words = w.split->words(part);
  o.leads = part == 0;
  return o;
}

/// Every rank has a swap file of its own.
SwapOptions swap_options(const Prepared& run, std::optional<std::uint64_t> run_id, RankId rank) {
  SwapOptions swap;
  swap.directories = run.config.nvme;
  swap.weights = run.profile.drive.stripe_weights;
  swap.bytes = padded_bytes(run.stage_of_rank(rank).needs.nvme);
  if (run_id) swap.name = swap_name(*run_id, rank);
  return swap;
}

}  // namespace

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const Prepared& run, StepSource& source, const Options& options) {
  std::unique_ptr<World> own;
  if (options.world == nullptr) own = std::make_unique<InProcessWorld>(run.workload.ranks());
  World* const world = options.world == nullptr ? own.get() : options.world;
  std::unique_ptr<Engine> engine(new Engine(run, world->here(), world, false));
  engine->own_world_ = std::move(own);
  const auto make = [&]() -> Status {
    SLUICE_TRY(engine->reserve(options));
    engine->build_ranks();
    return engine->build_executors(source, options);
  };
  if (const Status made = make(); !made.ok()) {
    if (!options.swap_exists) engine->discard_swap();
    return made.error();
  }
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::open_states(const Prepared& run, std::optional<std::uint64_t> swap_run_id,
                                                    World* world) {
  // Replicas have the same; stages do not.
  const RankRange all{0, static_cast<RankId>(ranks_with_all_states(run.config))};
  const RankRange here = world == nullptr ? all : world->here();
  std::unique_ptr<Engine> engine(new Engine(run, here, world, true));
  SLUICE_ASSIGN(std::unique_ptr<Device> cpu, Device::open("cpu"));
  DeviceMemory& host = cpu->memory();
  engine->devices_.push_back(std::move(cpu));
  engine->ranks_.resize(here.count);
  for (RankId r = here.first; r < here.end(); ++r) {
    Rank& rank = engine->at(r);
    if (swap_run_id) {
      SLUICE_ASSIGN(rank.swap, SwapFile::open_existing(swap_options(run, swap_run_id, r)));
    }
    SLUICE_ASSIGN(Memory memory, Memory::create({}, host));
    rank.memory = std::make_unique<Memory>(std::move(memory));
  }
  SLUICE_TRY(engine->open_stores());
  return engine;
}

Status Engine::check_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks) {
  for (RankId r = ranks.first; r < ranks.end(); ++r)
    if (const auto opened = SwapFile::open_existing(swap_options(run, run_id, r)); !opened.ok()) return opened.error();
  return success();
}

Status Engine::grow_swap(const Prepared& run, std::uint64_t run_id, RankRange ranks) {
  for (RankId r = ranks.first; r < ranks.end(); ++r) SLUICE_TRY(SwapFile::grow(swap_options(run, run_id, r)));
  return success();
}

Status Engine::reserve(const Options& options) {
  ranks_.resize(here_.count);
  // Swap files first: they say no before any memory is taken.
  for (RankId r = here_.first; r < here_.end(); ++r) {
    if (run_.stage_of_rank(r).needs.nvme == 0) continue;
    const SwapOptions swap = swap_options(run_, options.swap_run_id, r);
    // One that is there without a commit record is of an attempt that never began.
    if (!swap.name.empty() && !options.swap_exists) SLUICE_TRY(SwapFile::remove(swap));
    SLUICE_ASSIGN(at(r).swap, options.swap_exists ? SwapFile::open_existing(swap) : SwapFile::create(swap));
  }
  SLUICE_TRY(open_devices());
  for (RankId r = here_.first; r < here_.end(); ++r) {
    const TierBytes& needs = run_.stage_of_rank(r).needs;
    const std::array arenas{ArenaSpec{Tier::device, needs.device}, ArenaSpec{Tier::host, needs.host}};
    SLUICE_TRY(at_place(at(r), [&]() -> Status {
      Result<Memory> memory = Memory::create(arenas, at(r).device->memory());
      if (!memory.ok()) return here_.count > 1 ? memory.error().in("rank " + std::to_string(r)) : memory.error();
      at(r).memory = std::make_unique<Memory>(*std::move(memory));
      return success();
    }));
  }
  return open_stores();
}

Status Engine::at_place(const Rank& rank, const std::function<Status()>& work) {
  if (!rank.node) return work();
  std::optional<Status> done;
  const Status placed = run_on(*rank.node, [&] { done = work(); });
  return placed.ok() ? *done : work();  // where the kernel refuses, it runs anywhere
}

/// Ranks on one device share it, and each has the cores that are next to its own.
Status Engine::open_devices() {
  const RunConfig& c = run_.config;
  SLUICE_ASSIGN(const int count, count_devices(c.device));
  const std::vector<NumaNode> nodes = numa_nodes();
  const bool placed = is_placed();
  std::map<std::string, Device*> opened;
  for (RankId r = here_.first; r < here_.end(); ++r) {
    const int place = world_->place_on_node(r);
    const std::string name = c.ranks == 1 ? c.device : device_of_rank(c.device, count, place);
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
    // Ranks that share a GPU would all crowd where it is.
    const int near = run_.profile.ranks_of_device == 1 ? device->numa_node() : -1;
    if (!placed) at(r).node = node_of_rank(nodes, place, ranks_of_machine(c), near);
  }
  return success();
}

Status Engine::open_stores() {
  const auto swaps = [](const Rank& rank) { return !rank.swap.files().empty(); };
  if (const auto first = std::ranges::find_if(ranks_, swaps); first != ranks_.end()) {
    const DriveProfile& drive = run_.profile.drive;
    const RunConfig& c = run_.config;
    QueueOptions queue;
    SLUICE_ASSIGN(queue.backend, parse_io_backend(c.io_backend.empty() ? drive.backend : c.io_backend));
    queue.depth = c.queue_depth > 0 ? static_cast<std::size_t>(c.queue_depth) : drive.depth;
    queue.faults = c.faults;
    for (RankId r = here_.first; r < here_.end(); ++r) {
      Rank& rank = at(r);
      if (!swaps(rank)) continue;
      SLUICE_ASSIGN(rank.store, SwapStore::create(rank.swap, 0, rank.swap.bytes(), *rank.memory, queue));
      SLUICE_TRY(rank.store->bind(run_.stage_of_rank(r).main));
    }
    storage_ = first->swap.description() + "; " + first->store->queue(IoOp::read).description();
    if (here_.count > 1) storage_ += "; of each of " + std::to_string(here_.count) + " ranks";
  }
  std::vector<States::RankPlace> places;
  for (const Rank& rank : ranks_) places.push_back({rank.device, rank.memory.get(), rank.store.get()});
  states_ = std::make_unique<States>(run_, here_, world_, std::move(places), only_reads_);
  return success();
}

/// Where the rank's kernels find what rotary positions turn by: the host's, or copied to where the plans have it on the
/// device.
Result<RopeView> Engine::put_rope(RankId rank) {
  RopeView view = view_of(rope_);
  const StepPlan& plan = run_.stage_of_rank(rank).main;
  const BufferId rope = StateTable(plan).rope();
  if (rope == no_buffer) return view;
  std::byte* to = at(rank).memory->at(Tier::device, plan.buffers[rope].offset);
  const auto put = [&](const std::vector<float>& values, const float*& from) -> Status {
    from = reinterpret_cast<const float*>(to);
    const auto bytes = std::as_bytes(std::span(values));
    return at(rank).device->memory().copy(std::exchange(to, to + bytes.size()), bytes.data(), bytes.size());
  };
  if (rope_.cos.empty()) {
    SLUICE_TRY(put(rope_.frequencies, view.frequencies));
    return view;
  }
  SLUICE_TRY(put(rope_.cos, view.cos));
  SLUICE_TRY(put(rope_.sin, view.sin));
  return view;
}

/// The plans of the ranks of here, which differ in where a rank's own parts lie.
void Engine::build_ranks() {
  const Schedule &schedule = run_.search.schedule, ahead = schedule.ahead();
  for (std::size_t k = 0; k < plans_of_stage.size(); ++k) {
    const auto kind = plans_of_stage[k];
    for (RankId r = here_.first; r < here_.end(); ++r) {
      const StepPlan& plan = run_.stage_of_rank(r).*kind;
      if (plan.ops.empty()) continue;
      const bool is_own = plan.topology.rank() == r;
      if (!is_own) {
        other_plans_.push_back(
            std::make_unique<StepPlan>(build_alike(plan, run_.workload, goes_ahead(kind) ? ahead : schedule, r)));
        SLUICE_CHECK(plan_signature(*other_plans_.back()) == plan_signature(plan), "rank %u does not run alike", r);
      }
      plans_[k].push_back(is_own ? &plan : other_plans_.back().get());
    }
  }
}

Status Engine::begin(StepPlan StagePlans::*plan) {
  if (!run_.search.schedule.waiting.empty()) {
    const bool needs_none = goes_ahead(plan);
    if (!needs_none && lacks_residents_) SLUICE_TRY(states_->load_residents());
    lacks_residents_ = needs_none;
  }
  const auto at = std::ranges::find(plans_of_stage, plan) - plans_of_stage.begin();
  return team_->begin(plans_[static_cast<std::size_t>(at)]);
}

Status Engine::build_executors(StepSource& source, const Options& engine_options) {
  const Workload& w = run_.workload;
  const RunConfig& c = run_.config;
  rope_ = make_rope(w.model->config, w.shape, w.positions());
  ExecutorOptions options;
  options.optimizer_threads =
      c.optimizer_threads > 0
          ? c.optimizer_threads
          : std::max(1, run_.profile.device ? run_.profile.device->optimizer_threads : run_.profile.optimizer_threads);
  options.dtype = w.dtype;
  options.moments = MomentLayout::of(w.moments, run_.search.schedule.tile_numel);
  options.gradient_dtype = w.gradient_dtype;
  options.record_timeline = engine_options.record_timeline;
  options.delay_seed = c.delay_seed;
  std::vector<std::unique_ptr<Executor>> executors;
  for (RankId r = here_.first; r < here_.end(); ++r) {
    SLUICE_ASSIGN(const RopeView rope, put_rope(r));
    SLUICE_ASSIGN(at(r).backend, at(r).device->make_backend(*w.model, rope, sublayer_options(run_, r)));
    if (w.collects_on_device) {
      SLUICE_ASSIGN(at(r).collectives, at(r).device->make_collectives());
    }
    ExecutorParts parts;
    parts.memory = at(r).memory.get();
    parts.store = at(r).store.get();
    parts.backend = at(r).backend.get();
    parts.communicator = w.ranks() > 1 ? &world_->communicator(r) : nullptr;
    parts.device_collectives = at(r).collectives.get();
    parts.source = &source;
    parts.commit_sink = engine_options.commit_sink;
    if (w.saves) at(r).saver = std::make_unique<TileSaver>(*states_, r);
    parts.save_sink = at(r).saver.get();
    parts.units = optimizer_units(w, r);
    executors.push_back(std::make_unique<Executor>(std::move(parts), options));
  }
  team_ = std::make_unique<RankTeam>(
      std::move(executors),
      [this](std::size_t index, const std::function<Status()>& work) { return at_place(ranks_[index], work); });
  return success();
}

}  // namespace sluice
