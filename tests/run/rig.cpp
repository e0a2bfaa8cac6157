#include "tests/run/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/cpu/elementwise.h"

namespace sluice::testing {
namespace {

std::vector<ArenaSpec> specs_of(const StepPlan& plan) {
  std::vector<ArenaSpec> specs;
  for (const Arena& arena : plan.arenas) specs.push_back({arena.tier, arena.rank, arena.arena_bytes});
  return specs;
}

}  // namespace

Rig::Rig(const StepPlan& plan, std::vector<OptimizerUnit> units, RigOptions options)
    : plan_(plan), options_(options), communicator_(plan.ranks) {
  const std::vector<ArenaSpec> specs = specs_of(plan);
  auto memory = Memory::create(specs, device_);
  EXPECT_TRUE(memory.ok()) << memory.error().message;
  memory_ = std::make_unique<Memory>(std::move(memory).value());
  if (const std::uint64_t bytes = SwapStore::file_bytes(specs); bytes > 0) {
    SwapOptions swap;
    swap.directories = {directory_.path()};
    swap.bytes = bytes;
    auto file = SwapFile::create(swap);
    EXPECT_TRUE(file.ok()) << file.error().message;
    file_ = std::move(file).value();
    auto store = SwapStore::create(file_, specs, *memory_, options_.queue);
    EXPECT_TRUE(store.ok()) << store.error().message;
    store_ = std::move(store).value();
  }
  ExecutorParts parts;
  parts.memory = memory_.get();
  parts.store = store_.get();
  parts.backends.assign(plan.ranks, this);
  for (RankId rank = 0; options_.queued && rank < plan.ranks; ++rank) {
    devices_.push_back(
        std::make_unique<Device>(*this, options_.queue_delay_seed == 0 ? 0 : options_.queue_delay_seed + rank));
    parts.backends[rank] = devices_.back().get();
  }
  parts.communicator = &communicator_;
  parts.source = this;
  parts.commit_sink = this;
  parts.units = std::move(units);
  executor_ = std::make_unique<Executor>(std::move(parts), options_.executor);
}

Rig::~Rig() {
  executor_.reset();
  store_.reset();
  file_ = SwapFile{};
}

Status Rig::initialise() {
  auto bounce = map_pages(1 << 20);
  EXPECT_TRUE(bounce.ok());
  Status status;
  if (store_) status = store_->bind(plan_);
  for (BufferId b = 0; b < plan_.buffers.size() && status.ok(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.life != Life::persistent) continue;
    if (buffer.tier != Tier::nvme) {
      initial_content(options_.content_seed, b, {memory_->at(buffer.tier, buffer.rank, buffer.offset), buffer.bytes});
      continue;
    }
    initial_content(options_.content_seed, b, {*bounce, buffer.bytes});
    status = store_->write(b, Slot::current, 0, {*bounce, buffer.bytes});
  }
  unmap_pages(*bounce, 1 << 20);
  return status;
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
  SLUICE_TRY(executor_->begin(plan_));
  Status status;
  for (int i = 0; i < iterations && status.ok(); ++i) {
    status = executor_->release(params(static_cast<std::uint64_t>(i)));
    if (status.ok() && i > 0) status = executor_->wait(static_cast<std::uint64_t>(i) - 1);
  }
  Status ended = executor_->end();
  return ended.ok() ? status : ended;
}

std::string Rig::difference(const Reference& reference) {
  auto bounce = map_pages(1 << 20);
  EXPECT_TRUE(bounce.ok());
  std::string found;
  for (BufferId b = 0; b < plan_.buffers.size() && found.empty(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.life != Life::persistent) continue;
    const std::byte* data = *bounce;
    if (buffer.tier != Tier::nvme)
      data = memory_->at(buffer.tier, buffer.rank, buffer.offset);
    else if (Status read = store_->read(b, Slot::current, 0, {*bounce, buffer.bytes}); !read.ok())
      found = read.error().message;
    if (found.empty() && std::memcmp(data, reference.content(b).data(), buffer.bytes) != 0) found = buffer.name;
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

Rig::Device::Device(Rig& rig, std::uint64_t seed)
    : rig_(rig), compute_(seed), h2d_(seed == 0 ? 0 : seed + 100), d2h_(seed == 0 ? 0 : seed + 200) {}

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
    if (op.kind != OpKind::accumulate) return rig_.run(plan, op, operands, params);
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

Status Rig::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands, const StepParams& params) {
  mix(static_cast<OpId>(&op - plan.ops.data()), params, operands);
  return success();
}

Status Rig::load_tokens(RankId rank, std::int32_t micro_batch, const StepParams& params, std::span<std::int32_t> dst) {
  fill_tokens(rank, micro_batch, params, dst);
  return success();
}

Status Rig::step_end(RankId rank, const StepParams& params, const ControlBlock& control, std::span<const double> norms,
                     std::span<const double> losses) {
  const std::lock_guard lock(mutex_);
  records_.push_back({params.step, rank, control, {norms.begin(), norms.end()}, {losses.begin(), losses.end()}});
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

void expect_measured(const StepPlan& plan, const Executor& executor, std::uint64_t iterations) {
  const MovedBytes planned = planned_bytes(plan), moved = executor.moved();
  EXPECT_EQ(moved.h2d, planned.h2d * iterations);
  EXPECT_EQ(moved.d2h, planned.d2h * iterations);
  EXPECT_EQ(moved.nvme_read, planned.nvme_read * iterations);
  EXPECT_EQ(moved.nvme_write, planned.nvme_write * iterations);
  EXPECT_EQ(moved.collective, planned.collective * iterations);
  EXPECT_EQ(moved.within, 0u);
  for (const Arena& arena : plan.arenas) EXPECT_EQ(executor.peak_bytes(arena.tier, arena.rank), arena.arena_bytes);
}

}  // namespace

void expect_same_as_reference(const StepPlan& plan, const std::vector<OptimizerUnit>& units, RigOptions options,
                              int iterations) {
  Reference reference(plan, units, options.content_seed);
  for (int i = 0; i < iterations; ++i) reference.iterate(Rig::params(static_cast<std::uint64_t>(i)));
  Rig rig(plan, units, options);
  const Status ready = rig.initialise();
  ASSERT_TRUE(ready.ok()) << ready.error().message;
  const Status done = rig.iterate(iterations);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(rig.executor().errors(), 0u);
  EXPECT_EQ(rig.difference(reference), "");
  const auto records = rig.records();
  ASSERT_EQ(records.size(), reference.records().size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const StepRecord &a = records[i], &b = reference.records()[i];
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(std::memcmp(&a.control, &b.control, 3 * sizeof(double)), 0)
        << a.control.grad_norm_sq << " " << b.control.grad_norm_sq;
    EXPECT_EQ(a.norms, b.norms);
    EXPECT_EQ(a.losses, b.losses);
  }
  expect_measured(plan, rig.executor(), static_cast<std::uint64_t>(iterations));
}

}  // namespace sluice::testing
