#include "tests/run/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/cpu/elementwise.h"

namespace sluice::test {
namespace {

std::uint64_t arena_bytes(const StepPlan& plan, Tier tier) {
  const Arena* const arena = plan.arena(tier);
  return arena == nullptr ? 0 : arena->arena_bytes;
}

}  // namespace

Rig::Rig(const std::vector<StepPlan>& plans, std::vector<std::vector<OptimizerUnit>> units, RigOptions options)
    : plans_(plans), options_(options), world_(static_cast<RankId>(plans.size())), ranks_(plans.size()) {
  const std::uint64_t part = padded_bytes(arena_bytes(plans.front(), Tier::nvme));
  if (part > 0) {
    SwapOptions swap;
    swap.directories = {directory_.path()};
    swap.bytes = part * plans.size();
    auto file = SwapFile::create(swap);
    EXPECT_TRUE(file.ok()) << file.error().message;
    file_ = std::move(file).value();
  }
  std::vector<std::unique_ptr<Executor>> executors;
  for (RankId r = 0; r < plans.size(); ++r) {
    Rank& rank = ranks_[r];
    std::vector<ArenaSpec> specs;
    for (const Arena& arena : plans[r].arenas) specs.push_back({arena.tier, arena.arena_bytes});
    auto memory = Memory::create(specs, device_);
    EXPECT_TRUE(memory.ok()) << memory.error().message;
    rank.memory = std::make_unique<Memory>(std::move(memory).value());
    if (part > 0) {
      auto store = SwapStore::create(file_, r * part, part, *rank.memory, options_.queue);
      EXPECT_TRUE(store.ok()) << store.error().message;
      rank.store = std::move(store).value();
    }
    if (options_.queued)
      rank.backend =
          std::make_unique<Device>(*this, r, options_.queue_delay_seed == 0 ? 0 : options_.queue_delay_seed + r);
    else
      rank.backend = std::make_unique<Host>(r);
    ExecutorParts parts;
    parts.memory = rank.memory.get();
    parts.store = rank.store.get();
    parts.backend = rank.backend.get();
    parts.communicator = &world_.communicator(r);
    parts.source = this;
    parts.commit_sink = this;
    if (!units.empty()) parts.units = std::move(units[r]);
    executors.push_back(std::make_unique<Executor>(std::move(parts), options_.executor));
  }
  team_ = std::make_unique<RankTeam>(std::move(executors));
}

Rig::~Rig() {
  team_.reset();
  for (Rank& rank : ranks_) rank.store.reset();
  file_ = SwapFile{};
}

Status Rig::initialise() {
  auto bounce = map_pages(1 << 20);
  EXPECT_TRUE(bounce.ok());
  Status status;
  for (RankId r = 0; r < ranks(); ++r) {
    const StepPlan& plan = plans_[r];
    if (store(r) && status.ok()) status = store(r)->bind(plan);
    for (BufferId b = 0; b < plan.buffers.size() && status.ok(); ++b) {
      const Buffer& buffer = plan.buffers[b];
      if (buffer.life != Life::persistent) continue;
      if (buffer.tier != Tier::nvme) {
        initial_content(options_.content_seed, r, b, {memory(r).at(buffer.tier, buffer.offset), buffer.bytes});
        continue;
      }
      initial_content(options_.content_seed, r, b, {*bounce, buffer.bytes});
      status = store(r)->write(b, Slot::current, 0, {*bounce, buffer.bytes});
    }
  }
  unmap_pages(*bounce, 1 << 20);
  return status;
}

RankTeam Rig::other_team(InProcessWorld& world, ComputeBackend& backend, StepSource& source, CommitSink* sink,
                         const std::vector<std::vector<OptimizerUnit>>& units, const ExecutorOptions& options) {
  std::vector<std::unique_ptr<Executor>> executors;
  for (RankId r = 0; r < ranks(); ++r)
    executors.push_back(std::make_unique<Executor>(
        ExecutorParts{&memory(r), store(r), &backend, &world.communicator(r), nullptr, &source, sink, units[r]},
        options));
  return RankTeam(std::move(executors));
}

Status Rig::begin(RankTeam& team) {
  std::vector<const StepPlan*> plans;
  for (const StepPlan& plan : plans_) plans.push_back(&plan);
  return team.begin(plans);
}

StepParams Rig::params(std::uint64_t iteration) {
  StepParams params;
  params.step = iteration + 1;
  params.update_step = iteration;
  params.lr = 1e-2f;
  params.clip_norm = 20;
  return params;
}

Status Rig::iterate(int iterations) {
  SLUICE_TRY(begin());
  Status status;
  for (int i = 0; i < iterations && status.ok(); ++i) {
    status = team_->release(params(static_cast<std::uint64_t>(i)));
    if (status.ok() && i > 0) status = team_->wait(static_cast<std::uint64_t>(i) - 1);
  }
  Status ended = team_->end();
  return ended.ok() ? status : ended;
}

std::string Rig::difference(const Reference& reference) {
  auto bounce = map_pages(1 << 20);
  EXPECT_TRUE(bounce.ok());
  std::string found;
  for (RankId r = 0; r < ranks(); ++r)
    for (BufferId b = 0; b < plans_[r].buffers.size() && found.empty(); ++b) {
      const Buffer& buffer = plans_[r].buffers[b];
      if (buffer.life != Life::persistent) continue;
      const std::byte* data = *bounce;
      if (buffer.tier != Tier::nvme)
        data = memory(r).at(buffer.tier, buffer.offset);
      else if (Status read = store(r)->read(b, Slot::current, 0, {*bounce, buffer.bytes}); !read.ok())
        found = read.error().message;
      if (found.empty() && std::memcmp(data, reference.content(r, b).data(), buffer.bytes) != 0) found = buffer.name;
    }
  unmap_pages(*bounce, 1 << 20);
  return found;
}

std::vector<StepRecord> Rig::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<StepRecord> sorted = records_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const StepRecord& a, const StepRecord& b) {
    return std::pair(a.step, a.rank) < std::pair(b.step, b.rank);
  });
  return sorted;
}

std::vector<std::pair<RankId, std::uint8_t>> Rig::commits() const {
  const std::lock_guard lock(mutex_);
  return commits_;
}

Rig::Device::Device(Rig& rig, RankId rank, std::uint64_t seed)
    : rig_(rig), host_(rank), compute_(seed), h2d_(seed == 0 ? 0 : seed + 100), d2h_(seed == 0 ? 0 : seed + 200) {}

DeviceQueue* Rig::Device::queue(LaneKind kind) {
  return kind == LaneKind::compute ? &compute_
         : kind == LaneKind::h2d   ? &h2d_
         : kind == LaneKind::d2h   ? &d2h_
                                   : nullptr;
}

Status Rig::Device::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                        const StepParams& params) {
  if (rig_.options_.device_takes) rig_.options_.device_takes(op);
  compute_.put([this, &plan, &op, operands, params]() -> Status {
    if (rig_.options_.device_fault) SLUICE_TRY(rig_.options_.device_fault(op));
    if (op.kind != OpKind::accumulate) return host_.run(plan, op, operands, params);
    const auto find = [&](Role role) {
      return std::find_if(operands.begin(), operands.end(), [role](const Operand& o) { return o.role == role; });
    };
    kernels::add_f32(reinterpret_cast<const float*>(find(Role::src)->data),
                     reinterpret_cast<float*>(find(Role::dst)->data),
                     static_cast<std::int64_t>(find(Role::dst)->bytes / sizeof(float)));
    return success();
  });
  return success();
}

Status Rig::Device::update(const DeviceUpdate& update, const StepParams& params) {
  compute_.put([this, update, params]() -> Status {
    const std::uint64_t count = update_tile(update.tile, update.chunks, params, update.clip_factor, team_);
    const bool diverges = update.first && params.update_step == rig_.options_.diverges_in_step;
    *update.diverged = (update.first ? 0 : *update.diverged) + count + (diverges ? 1 : 0);
    return success();
  });
  return success();
}

Status Rig::Host::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) {
  mix(rank_, static_cast<OpId>(&op - plan.ops.data()), params, operands);
  return success();
}

Status Rig::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst) {
  fill_tokens(rank, micro_batch, params, dst);
  return success();
}

Status Rig::step_end(RankId rank, const StepParams& params, const ControlBlock& control,
                     std::span<const double> losses) {
  const std::lock_guard lock(mutex_);
  records_.push_back({params.step, rank, control, {losses.begin(), losses.end()}});
  return success();
}

Status Rig::commit(RankId rank, const StepParams&, std::uint8_t parity) {
  const std::lock_guard lock(mutex_);
  commits_.emplace_back(rank, parity);
  return success();
}

namespace {

/// Bytes of one iteration of the plan, by link. Drive transfers end on 4096.
MovedBytes planned_bytes(const StepPlan& plan) {
  MovedBytes moved;
  for (const Op& op : plan.ops) {
    const LaneKind lane = plan.lanes[op.lane].kind;
    if (op.kind == OpKind::read) moved.nvme_read += padded_bytes(op.bytes);
    if (op.kind == OpKind::write) moved.nvme_write += padded_bytes(op.bytes);
    if (lane == LaneKind::h2d) moved.h2d += op.bytes;
    if (lane == LaneKind::d2h) moved.d2h += op.bytes;
    if (lane == LaneKind::comm) moved.collective += op.bytes;
  }
  return moved;
}

void expect_measured(const StepPlan& plan, Executor& executor, std::uint64_t iterations) {
  const MovedBytes planned = planned_bytes(plan), moved = executor.moved();
  EXPECT_EQ(moved.h2d, planned.h2d * iterations);
  EXPECT_EQ(moved.d2h, planned.d2h * iterations);
  EXPECT_EQ(moved.nvme_read, planned.nvme_read * iterations);
  EXPECT_EQ(moved.nvme_write, planned.nvme_write * iterations);
  EXPECT_EQ(moved.collective, planned.collective * iterations);
  EXPECT_EQ(moved.within, 0u);
  for (const Arena& arena : plan.arenas) EXPECT_EQ(executor.peak_bytes(arena.tier), arena.arena_bytes);
}

}  // namespace

void expect_same_as_reference(const std::vector<StepPlan>& plans, const std::vector<std::vector<OptimizerUnit>>& units,
                              RigOptions options, int iterations) {
  Reference reference(plans, units, options.content_seed);
  for (int i = 0; i < iterations; ++i) reference.iterate(Rig::params(static_cast<std::uint64_t>(i)));
  Rig rig(plans, units, options);
  const Status ready = rig.initialise();
  ASSERT_TRUE(ready.ok()) << ready.error().message;
  const Status done = rig.iterate(iterations);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(rig.team().errors(), 0u);
  EXPECT_EQ(rig.difference(reference), "");
  const auto records = rig.records();
  ASSERT_EQ(records.size(), reference.records().size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const StepRecord &a = records[i], &b = reference.records()[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(std::memcmp(&a.control, &b.control, 3 * sizeof(double)), 0)
        << a.control.grad_norm_sq << " " << b.control.grad_norm_sq;
    EXPECT_EQ(a.losses, b.losses);
  }
  for (RankId r = 0; r < rig.ranks(); ++r)
    expect_measured(plans[r], rig.team().rank(r), static_cast<std::uint64_t>(iterations));
}

}  // namespace sluice::test
