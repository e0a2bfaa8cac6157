#include "offload/run/executor.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "offload/plan/finish.h"
#include "offload/run/drive_lane.h"
#include "offload/run/queue_lane.h"
#include "offload/run/run_state.h"
#include "offload/run/save_lane.h"
#include "offload/run/step_ops.h"

namespace sluice {

namespace {

/// A lane that moves data works little and often, beside compute that never sleeps. Under Linux's EEVDF scheduler (6.12
/// and later) a thread that asks for short turns gets them soon; else it waits for the end of compute's turn, some
/// milliseconds at every handoff. Elsewhere this changes nothing.
void ask_for_short_turns() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  attributes.size = sizeof attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

static_assert(Executor::max_released == RunState::max_released);

struct Executor::Impl {
  Impl(ExecutorParts p, ExecutorOptions o) : parts(std::move(p)), options(o), ops(parts, options) {}

  Status bind(const StepPlan& plan);
  Status check_parts(const StepPlan& plan) const;
  void find_queues(const StepPlan& plan);
  void start_lanes();
  void run_lane(LaneId lane);
  void run_plain_lane(LaneId lane);
  void join();
  void give_back_store();

  ExecutorParts parts;
  ExecutorOptions options;
  StepOps ops;
  mutable std::mutex run_mutex;            ///< guards `run` against stop from other threads
  std::shared_ptr<RunState> run;           ///< while a plan is bound
  const StepPlan* bound_before = nullptr;  ///< the store's plan when this one began
  std::vector<std::unique_ptr<DriveLane>> drive_lanes;
  std::vector<DeviceQueue*> queues;  ///< [lane], null for the host's
  std::vector<std::unique_ptr<QueueLane>> queue_lanes;
  std::vector<std::thread> threads;
  // Of the plan that ended last.
  std::uint64_t errors = 0;
  std::array<std::uint64_t, 3> peaks{};  ///< [tier]
  Timeline timeline;
  std::uint64_t nvme_read_before = 0, nvme_write_before = 0, nvme_read = 0, nvme_write = 0;
};

Executor::Executor(ExecutorParts parts, ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(parts), options)) {}

Executor::~Executor() {
  if (!impl_->run) return;
  stop({ErrorCode::cancelled, "the executor is being destroyed"});
  impl_->join();
}

Status Executor::Impl::check_parts(const StepPlan& plan) const {
  if (parts.memory == nullptr) return bad_request("an executor needs a memory");
  if (options.dtype != Dtype::f32 && options.dtype != Dtype::bf16) return bad_request("parameters must be f32 or bf16");
  if (!plan.groups.empty() && parts.communicator == nullptr)
    return bad_request("the plan meets " + std::to_string(plan.topology.ranks()) +
                       " ranks, and there is no communicator");
  if (std::ranges::any_of(plan.lanes, is_of_device_collectives) && parts.device_collectives == nullptr)
    return bad_request("the plan's ranks meet in device memory, and nothing carries that");
  for (OpId id = 0; id < plan.ops.size(); ++id) {
    const Op& op = plan.ops[id];
    const bool updates = op.kind == OpKind::update && plan.lanes[op.lane].kind == LaneKind::compute;
    const bool computes = op.kind <= OpKind::logits || updates;
    const bool asks_source = op.kind == OpKind::load_tokens || op.kind == OpKind::step_end;
    if (computes && parts.backend == nullptr) return bad_request("no compute backend").in(describe(plan, id));
    const bool commits = op.kind == OpKind::sync || op.kind == OpKind::commit;
    if (commits && parts.store == nullptr) return bad_request("no store to commit").in(describe(plan, id));
    if (asks_source && parts.source == nullptr) return bad_request("no step source").in(describe(plan, id));
    if (op.kind == OpKind::load_tokens &&
        (op.accesses.empty() || plan.buffers[op.accesses.front().buffer].tier != Tier::host))
      return bad_request("loads tokens to nowhere in host memory").in(describe(plan, id));
  }
  return success();
}

Status Executor::begin(const StepPlan& plan) {
  Impl& impl = *impl_;
  if (impl.run) return bad_request("a plan is bound already; end it first");
  // First of all: ranks that meet prepare as often as each other, also where one of them is refused.
  const bool sums_natively = std::ranges::any_of(plan.ops, [&](const Op& op) {
    return op.sums == RankSums::native && !is_of_device_collectives(plan.lanes[op.lane]);
  });
  if (impl.parts.communicator != nullptr)
    SLUICE_TRY(impl.parts.communicator->prepare(plan.topology, plan.groups, sums_natively));
  Status bound = impl.bind(plan);
  // Other ranks may be waiting for this one.
  if (!bound.ok() && impl.parts.communicator != nullptr) impl.parts.communicator->cancel(bound.error().message);
  return bound;
}

Status Executor::Impl::bind(const StepPlan& plan) {
  SLUICE_TRY(check_parts(plan));
  SLUICE_ASSIGN(BoundPlan bound, BoundPlan::make(plan, {*parts.memory, parts.store, parts.units, options.dtype,
                                                        options.moments, options.gradient_dtype}));
  ops.prepare(plan, bound);
  if (parts.store != nullptr) {
    bound_before = parts.store->bound_plan();
    if (Status learned = parts.store->bind(plan); !learned.ok()) {
      give_back_store();
      return learned;
    }
    nvme_read_before = parts.store->read_bytes();
    nvme_write_before = parts.store->written_bytes();
  }
  find_queues(plan);
  const bool has_queues = std::any_of(queues.begin(), queues.end(), [](auto* queue) { return queue != nullptr; });
  auto fresh = std::make_shared<RunState>(plan, std::move(bound), *parts.memory, parts.communicator,
                                          RunState::Options{options.record_timeline, options.delay_seed, has_queues});
  {
    const std::lock_guard lock(run_mutex);
    run = std::move(fresh);
  }
  start_lanes();
  return success();
}

void Executor::Impl::find_queues(const StepPlan& plan) {
  queues.assign(plan.lanes.size(), nullptr);
  for (std::size_t i = 0; i < plan.lanes.size(); ++i)
    if (is_of_device_collectives(plan.lanes[i]))
      queues[i] = &parts.device_collectives->queue();
    else if (parts.backend != nullptr)
      queues[i] = parts.backend->queue(plan.lanes[i].kind);
}

void Executor::Impl::start_lanes() {
  const std::vector<BoundLane>& lanes = run->bound().lanes;
  // Wakers are set before any lane runs.
  drive_lanes.resize(lanes.size());
  queue_lanes.resize(lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (queues[i] != nullptr) queue_lanes[i] = std::make_unique<QueueLane>(*run, static_cast<LaneId>(i), ops, queues);
    const bool drives = lanes[i].lane.kind == LaneKind::nvme_read || lanes[i].lane.kind == LaneKind::nvme_write;
    if (drives && !lanes[i].ops.empty())
      drive_lanes[i] = std::make_unique<DriveLane>(*run, static_cast<LaneId>(i), *parts.store);
  }
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].ops.empty()) continue;
    threads.emplace_back([this, i] { run_lane(static_cast<LaneId>(i)); });
    if (queue_lanes[i])
      threads.emplace_back([this, i] {
        ask_for_short_turns();
        queue_lanes[i]->collect();
      });
  }
}

void Executor::Impl::run_lane(LaneId lane) {
  const Lane& what = run->plan().lanes[lane];
  const std::string name =
      std::string(lane_names[static_cast<std::size_t>(what.kind)]) + "." + std::to_string(run->plan().topology.rank());
  pthread_setname_np(pthread_self(), name.c_str());
  if (what.kind != LaneKind::compute) ask_for_short_turns();
  if (is_of_device_collectives(what))
    if (const Status met = parts.device_collectives->connect(run->plan(), lane, *parts.communicator); !met.ok())
      run->stop(met.error());
  if (drive_lanes[lane])
    drive_lanes[lane]->run();
  else if (queue_lanes[lane])
    queue_lanes[lane]->put_in();
  else if (what.kind == LaneKind::save)
    SaveLane(*run, lane, parts.save_sink).run();
  else
    run_plain_lane(lane);
}

void Executor::Impl::run_plain_lane(LaneId lane) {
  RunState& state = *run;
  Progress& progress = state.progress();
  const BoundLane& bound = state.bound().lanes[lane];
  if (bound.lane.kind == LaneKind::compute && parts.backend != nullptr) parts.backend->thread_started();
  for (std::uint64_t iteration = 0;; ++iteration) {
    if (!progress.await(lane, state.release_source(), iteration + 1)) return;
    for (std::uint32_t other = 0; other < state.barrier_lanes(); ++other)
      if (!progress.await(lane, other, state.finished_before(other, iteration))) return;
    const StepParams& params = state.params(iteration);
    for (const BoundOp& op : bound.ops) {
      for (const BoundWait& wait : op.waits)
        if (!progress.await(lane, wait.source, state.threshold(wait, iteration))) return;
      if (progress.halted()) return;
      const double started = state.start_op(lane, op, iteration);
      if (Status done = ops.run(op, params); !done.ok()) {
        state.stop(done.error().in(describe(state.plan(), op.id)));
        return;
      }
      state.finish_op(lane, op, iteration, started);
    }
  }
}

/// Buffer ids mean to the caller what they meant before.
void Executor::Impl::give_back_store() {
  if (bound_before == nullptr) return;
  const Status again = parts.store->bind(*bound_before);
  SLUICE_CHECK(again.ok(), "(%s)", again.error().message.c_str());
}

void Executor::Impl::join() {
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  drive_lanes.clear();
  queue_lanes.clear();
  errors = run->errors();
  timeline = run->timeline();
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme})
    peaks[static_cast<std::size_t>(tier)] = run->peak_bytes(tier);
  if (parts.store != nullptr) {
    nvme_read += parts.store->read_bytes() - nvme_read_before;
    nvme_write += parts.store->written_bytes() - nvme_write_before;
    nvme_read_before = parts.store->read_bytes();
    nvme_write_before = parts.store->written_bytes();
    give_back_store();
  }
  const std::lock_guard lock(run_mutex);
  run.reset();
}

Status Executor::release(const StepParams& params) {
  if (!impl_->run) return bad_request("no plan is bound");
  return impl_->run->release(params);
}

Status Executor::wait(std::uint64_t iteration) {
  if (!impl_->run) return bad_request("no plan is bound");
  return impl_->run->wait(iteration);
}

Status Executor::end() {
  if (!impl_->run) return success();
  const std::shared_ptr<RunState> run = impl_->run;  // join lets go of it
  if (run->released() > 0) {
    // An error is reported below, from where every lane has stopped.
    const Status drained = run->wait(run->released() - 1);
    (void)drained;
  }
  run->halt();
  impl_->join();
  if (auto error = run->first_error()) return *error;
  return success();
}

void Executor::stop(const Error& reason) {
  // Under the lock: a late stop must not reach into the communicator of the next plan.
  const std::lock_guard lock(impl_->run_mutex);
  if (impl_->run) impl_->run->stop(reason);
}

std::uint64_t Executor::errors() const { return impl_->run ? impl_->run->errors() : impl_->errors; }

MovedBytes Executor::moved() const {
  MovedBytes moved = impl_->ops.moved();
  moved.nvme_read = impl_->nvme_read;
  moved.nvme_write = impl_->nvme_write;
  if (impl_->run && impl_->parts.store != nullptr) {
    moved.nvme_read += impl_->parts.store->read_bytes() - impl_->nvme_read_before;
    moved.nvme_write += impl_->parts.store->written_bytes() - impl_->nvme_write_before;
  }
  return moved;
}

MovedBytes Executor::moved(std::uint64_t iteration) const {
  return impl_->run ? impl_->run->moved(iteration) : MovedBytes{};
}

std::uint64_t Executor::peak_bytes(Tier tier) const {
  return impl_->run ? impl_->run->peak_bytes(tier) : impl_->peaks[static_cast<std::size_t>(tier)];
}

Timeline Executor::timeline() const { return impl_->run ? impl_->run->timeline() : impl_->timeline; }

}  // namespace sluice
