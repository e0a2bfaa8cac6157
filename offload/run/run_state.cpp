#include "offload/run/run_state.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "sluice/random.h"

namespace sluice {
namespace {

/// What a finished op has moved, from what it was bound to; of transfers these bytes.
void count_moved(const BoundOp& op, std::uint64_t transferred, MovedBytes& moved) {
  for (const BoundCopy& copy : op.copies)
    (copy.direction == Direction::h2d   ? moved.h2d
     : copy.direction == Direction::d2h ? moved.d2h
                                        : moved.within) += copy.bytes;
  switch (op.op->kind) {
    case OpKind::read: moved.nvme_read += transferred; break;
    case OpKind::write: moved.nvme_write += transferred; break;
    case OpKind::all_gather:
    case OpKind::all_to_all:
    case OpKind::ring_shift:
    case OpKind::reduce_scatter: moved.collective += op.op->bytes; break;
    case OpKind::receive: moved.message += op.op->bytes; break;
    default: break;
  }
}

}  // namespace

RunState::RunState(const StepPlan& plan, BoundPlan bound, const Memory& memory, Communicator* communicator,
                   Options options)
    : plan_(plan),
      bound_(std::move(bound)),
      progress_(plan.lanes.size() * (options.has_queues ? 2 : 1) + 1,
                plan.lanes.size() * (options.has_queues ? 2 : 1) + 1),
      communicator_(communicator),
      options_(options),
      records_(plan.lanes.size()) {
  if (options_.record_timeline) times_.resize(plan.ops.size() * params_.size());
  // Where a device works in queues, bytes are free when the device has come so far, and used anew before the host hears
  // of it.
  if (poison_freed_bytes && !options.has_queues) poisoner_ = std::make_unique<Poisoner>(plan, memory);
}

Status RunState::release(const StepParams& params) {
  if (auto error = first_error()) return *error;
  if (released_ - waited_ >= max_released)
    return bad_request("iteration " + std::to_string(waited_) + " must be waited for before another is released");
  params_[released_ % params_.size()] = params;
  progress_.publish(release_source(), ++released_);
  return success();
}

Status RunState::wait(std::uint64_t iteration) {
  if (iteration >= released_) return bad_request("iteration " + std::to_string(iteration) + " is not released");
  for (std::size_t lane = 0; lane < bound_.lanes.size(); ++lane) {
    const std::uint64_t ops = bound_.lanes[lane].ops.size();
    if (ops > 0 && !progress_.await(plan_.lanes.size(), lane, (iteration + 1) * ops)) {
      if (auto error = first_error()) return *error;
      return Error{ErrorCode::cancelled, "the run has ended"};
    }
  }
  waited_ = std::max(waited_, iteration + 1);
  return success();
}

MovedBytes RunState::moved(std::uint64_t iteration) const {
  MovedBytes sum;
  for (const LaneRecord& record : records_) sum += record.moved[iteration % params_.size()];
  return sum;
}

Timeline RunState::timeline() const {
  Timeline spans;
  if (times_.empty() || waited_ == 0) return spans;
  const std::uint64_t iteration = waited_ - 1;
  const Times* const times = &times_[iteration % params_.size() * plan_.ops.size()];
  for (OpId op = 0; op < plan_.ops.size(); ++op)
    spans.push_back({op, static_cast<std::uint32_t>(iteration), times[op].start, times[op].end});
  return spans;
}

std::uint64_t RunState::peak_bytes(Tier tier) const {
  std::uint64_t peak = 0;
  for (const Buffer& buffer : plan_.buffers)
    if (buffer.tier == tier && buffer.life == Life::persistent)
      peak = std::max(peak, buffer.offset + footprint_bytes(buffer));
  for (const LaneRecord& record : records_)
    peak = std::max(peak, record.alive_end[static_cast<std::size_t>(tier)].load(std::memory_order_relaxed));
  return peak;
}

void RunState::stop(const Error& reason) {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_ && reason.code == ErrorCode::cancelled) return;
    ++errors_;
    if (!error_) error_ = reason;
  }
  progress_.halt();
  if (communicator_ != nullptr) communicator_->cancel(reason.message);
}

std::optional<Error> RunState::first_error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

std::uint64_t RunState::errors() const {
  const std::lock_guard lock(error_mutex_);
  return errors_;
}

std::uint64_t RunState::threshold(const BoundWait& wait, std::uint64_t iteration) const {
  if (wait.previous_iteration && iteration == 0) return 0;
  return (iteration - (wait.previous_iteration ? 1 : 0)) * bound_.lanes[wait.source].ops.size() + wait.position;
}

// Tests: no legal plan may depend on how long a lane takes.
void RunState::delay(LaneId lane, const BoundOp& op, std::uint64_t iteration, std::uint64_t moment) const {
  const auto bits = philox(options_.delay_seed, iteration * plan_.ops.size() + op.id, std::uint64_t{2} * lane + moment);
  if (bits[0] % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(bits[1] % 300));
}

double RunState::start_op(LaneId lane, const BoundOp& op, std::uint64_t iteration) {
  if (options_.delay_seed != 0) delay(lane, op, iteration, 0);
  for (std::size_t tier = 0; tier < op.alive_end.size(); ++tier) {
    std::atomic<std::uint64_t>& end = records_[lane].alive_end[tier];
    if (op.alive_end[tier] > end.load(std::memory_order_relaxed))
      end.store(op.alive_end[tier], std::memory_order_relaxed);
  }
  return options_.record_timeline ? now() : 0;
}

void RunState::finish_op(LaneId lane, const BoundOp& op, std::uint64_t iteration, double started) {
  finish(lane, op, iteration, {started, options_.record_timeline ? now() : 0});
}

void RunState::finish_op(LaneId lane, const BoundOp& op, std::uint64_t iteration, const DeviceQueue::Ran& ran) {
  const double begin = std::chrono::duration<double>(begin_.time_since_epoch()).count();
  finish(lane, op, iteration, {ran.start - begin, ran.end - begin});
}

void RunState::finish(LaneId lane, const BoundOp& op, std::uint64_t iteration, const Times& times) {
  if (options_.delay_seed != 0) delay(lane, op, iteration, 1);
  if (poisoner_) poisoner_->finished(op.id);
  MovedBytes& moved = records_[lane].moved[iteration % params_.size()];
  if (&op == &bound_.lanes[lane].ops.front()) moved = {};
  std::uint64_t transferred = 0;
  for (const BoundTransfer& transfer : op.transfers)
    if (!leaves_out(op, transfer, iteration)) transferred += transfer.bytes;
  count_moved(op, transferred, moved);
  if (options_.record_timeline) times_[iteration % params_.size() * plan_.ops.size() + op.id] = times;
  progress_.publish(lane, ++records_[lane].finished);
}

}  // namespace sluice
