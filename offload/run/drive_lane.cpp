#include "offload/run/drive_lane.h"

#include <algorithm>
#include <string>
#include <utility>

#include "offload/plan/finish.h"

namespace sluice {
namespace {

/// Requests that begin with one system call where the drive has enough to do.
constexpr std::size_t requests_a_call = 8;

IoOp io_op_of(LaneKind lane) { return lane == LaneKind::nvme_read ? IoOp::read : IoOp::write; }

bool commits(const StepPlan& plan) {
  return std::ranges::any_of(plan.ops, [](const Op& op) { return op.kind == OpKind::commit; });
}

}  // namespace

DriveLane::DriveLane(RunState& run, LaneId lane, SwapStore& store)
    : run_(run),
      lane_(lane),
      store_(store),
      queue_(store.queue(io_op_of(run.plan().lanes[lane].kind))),
      ops_(run.bound().lanes[lane].ops),
      first_parity_(store.parity()),
      flips_(commits(run.plan())),
      requests_(queue_.capacity()),
      finished_(queue_.capacity()),
      blocks_(2 * queue_.capacity()),  // as many again may wait to be verified
      arrived_(blocks_.size()),
      window_(run.plan().lanes[lane].windowed ? queue_.capacity() : 1) {
  for (Request& request : requests_) free_.push_back(&request);
  for (Block& block : blocks_) free_blocks_.push_back(&block);
  run_.progress().set_waker(
      lane_, [](void* queue) { static_cast<IoQueue*>(queue)->wake(); }, &queue_);
}

void DriveLane::run() {
  while (!run_.progress().halted()) {
    if (!step()) sleep();
  }
  // The first error is known already; what this drain would add is its echo. Memory is safe once nothing is in flight.
  queue_.cancel();
  if (Status drained = queue_.drain(); !drained.ok() && !run_.first_error()) run_.stop(drained.error());
}

bool DriveLane::step() {
  bool moved = false;
  collect(0);
  while (!run_.progress().halted()) {
    if (!submitting_) {
      if (!start_next()) break;
      moved = true;
    }
    if (!submit()) break;
    moved = true;
  }
  begin_requests();
  // One block at a time, so that the window is full meanwhile.
  if (!run_.progress().halted() && verify_one()) moved = true;
  while (!run_.progress().halted() && retire()) moved = true;
  return moved;
}

bool DriveLane::start_next() {
  blocked_ = false;
  if (started_ == window_.size()) return false;
  const BoundOp& op = ops_[next_op_];
  const auto ready = [&](std::size_t source, std::uint64_t threshold) {
    if (run_.progress().count(source) >= threshold) return true;
    blocked_ = true;
    blocked_source_ = source;
    blocked_threshold_ = threshold;
    return false;
  };
  if (!ready(run_.release_source(), iteration_ + 1)) return false;
  for (std::uint32_t other = 0; next_op_ == 0 && other < run_.barrier_lanes(); ++other)
    if (!ready(other, run_.finished_before(other, iteration_))) return false;
  for (const BoundWait& wait : op.waits)
    if (!ready(wait.source, run_.threshold(wait, iteration_))) return false;

  Started& entry = window_[(oldest_ + started_) % window_.size()];
  entry = {&op, iteration_, run_.start_op(lane_, op, iteration_), 0, 0, false};
  ++started_;
  submitting_ = true;
  transfer_ = 0;
  submitted_bytes_ = 0;
  if (++next_op_ == ops_.size()) {
    next_op_ = 0;
    ++iteration_;
  }
  return true;
}

bool DriveLane::submit() {
  Started& newest = window_[(oldest_ + started_ - 1) % window_.size()];
  const BoundOp& op = *newest.op;
  for (; transfer_ < op.transfers.size(); ++transfer_, submitted_bytes_ = 0)
    if (!run_.leaves_out(op, op.transfers[transfer_], newest.iteration) && !submit_transfer()) return false;
  newest.all_submitted = true;
  submitting_ = false;
  return true;
}

// Block by block; a block that crosses a stripe takes several requests.
bool DriveLane::submit_transfer() {
  Started& newest = window_[(oldest_ + started_ - 1) % window_.size()];
  const BoundTransfer& transfer = newest.op->transfers[transfer_];
  const IoOp op = newest.op->op->kind == OpKind::read ? IoOp::read : IoOp::write;
  const std::uint8_t slot = physical_slot(transfer, newest.iteration);
  BufferSums& sums = store_.sums(transfer.buffer);
  const std::uint64_t padded = padded_bytes(transfer.bytes), block_bytes = sums.block_bytes;
  while (submitted_bytes_ < padded) {
    if (free_.empty()) return false;
    const std::uint64_t offset = transfer.offset + submitted_bytes_;
    const std::uint64_t in_block = std::min(block_bytes - offset % block_bytes, padded - submitted_bytes_);
    if (offset % block_bytes == 0) {
      const std::uint64_t content = std::min(in_block, transfer.bytes - submitted_bytes_);
      if (op == IoOp::write) sums.slots[slot].set(offset / block_bytes, {transfer.host + submitted_bytes_, content});
      if (op == IoOp::read && (block_ = open_block(newest, transfer, submitted_bytes_, content)) == nullptr)
        return false;
    }
    const SwapPiece piece = store_.file().piece(store_.file_offset(transfer.buffer, slot, offset), in_block);
    if (!start_request(newest, block_, op, piece, transfer.host + submitted_bytes_)) return false;
    submitted_bytes_ += piece.bytes;
    if (block_ != nullptr && piece.bytes == in_block) std::exchange(block_, nullptr)->all_submitted = true;
    // An idle drive is not kept waiting for the checksums of a whole window.
    if (++unbegun_ >= requests_a_call || queue_.in_flight() <= queue_.depth() / 2) begin_requests();
  }
  return true;
}

void DriveLane::begin_requests() {
  if (unbegun_ > 0) queue_.flush();
  unbegun_ = 0;
}

DriveLane::Block* DriveLane::open_block(Started& owner, const BoundTransfer& transfer, std::uint64_t begin,
                                        std::uint64_t bytes) {
  if (free_blocks_.empty()) return nullptr;
  Block* const block = free_blocks_.back();
  free_blocks_.pop_back();
  *block = {&owner, &transfer, begin, bytes, 0, false};
  ++owner.unverified;
  return block;
}

bool DriveLane::start_request(Started& owner, Block* block, IoOp op, SwapPiece piece, std::byte* data) {
  if (free_.empty()) return false;
  Request* const request = free_.back();
  request->io = IoRequest{};
  request->io.op = op;
  request->io.file = piece.file;
  request->io.offset = piece.offset;
  request->io.bytes = piece.bytes;
  request->io.data = data;
  request->io.user = request;
  request->owner = &owner;
  request->block = block;
  if (!queue_.submit(&request->io)) return false;
  free_.pop_back();
  ++owner.in_flight;
  if (block != nullptr) ++block->in_flight;
  return true;
}

bool DriveLane::retire() {
  if (started_ == 0) return false;
  const Started& entry = window_[oldest_];
  if (!entry.all_submitted || entry.in_flight > 0 || entry.unverified > 0) return false;
  run_.finish_op(lane_, *entry.op, entry.iteration, entry.time);
  oldest_ = (oldest_ + 1) % window_.size();
  --started_;
  return true;
}

bool DriveLane::verify_one() {
  if (arrived_count_ == 0) return false;
  Block* const block = arrived_[first_arrived_];
  first_arrived_ = (first_arrived_ + 1) % arrived_.size();
  --arrived_count_;
  const BoundTransfer& transfer = *block->transfer;
  const BufferSums& sums = store_.sums(transfer.buffer);
  const BlockChecksums& table = sums.slots[physical_slot(transfer, block->owner->iteration)];
  const Status same =
      table.verify((transfer.offset + block->begin) / sums.block_bytes, {transfer.host + block->begin, block->bytes},
                   run_.plan().buffers[transfer.buffer].name.c_str());
  --block->owner->unverified;
  if (!same.ok()) fail(*block->owner->op, same.error());
  free_blocks_.push_back(block);
  return true;
}

std::uint8_t DriveLane::physical_slot(const BoundTransfer& transfer, std::uint64_t iteration) const {
  const Buffer& buffer = run_.plan().buffers[transfer.buffer];
  if (buffer.slots < 2) return 0;
  const auto current = static_cast<std::uint8_t>(flips_ ? first_parity_ ^ (iteration & 1) : first_parity_);
  const auto other = static_cast<std::uint8_t>(1 - current);
  if (!buffer.behind) return transfer.slot == Slot::current ? current : other;
  // What is next to it is what the others have made current. With no update due, it is there already.
  const bool is_due = run_.params(iteration).update_step != 0;
  return transfer.slot == Slot::current && is_due ? other : current;
}

// Nothing becomes visible before the oldest op's requests are done, and a window is better refilled in batches: each
// sleep and each submission is a system call. Where the cursor waits for another lane, its wake-up comes first.
std::size_t DriveLane::wanted_completions() const {
  if (blocked_ || started_ == 0) return 1;
  return std::clamp<std::size_t>(window_[oldest_].in_flight, 1, std::max<std::size_t>(1, queue_.in_flight() / 2));
}

// Until requests finish or what the cursor waits for has happened: the waker interrupts the queue's wait.
void DriveLane::sleep() {
  if (blocked_ && run_.progress().arm(lane_, blocked_source_, blocked_threshold_)) return;
  if (run_.progress().halted()) return;
  collect(wanted_completions());
}

void DriveLane::collect(std::size_t min_completions) {
  if (min_completions == 0 && queue_.in_flight() == 0) return;
  Result<std::size_t> got = queue_.wait(min_completions, finished_);
  if (!got.ok()) {
    run_.stop(got.error());
    return;
  }
  complete(std::span(finished_).first(*got));
}

void DriveLane::complete(std::span<IoRequest*> finished) {
  for (IoRequest* io : finished) {
    auto* const request = static_cast<Request*>(io->user);
    --request->owner->in_flight;
    if (io->error != 0) fail(*request->owner->op, queue_.status(*io).error());
    free_.push_back(request);
    Block* const block = request->block;
    if (block == nullptr || --block->in_flight > 0 || !block->all_submitted) continue;
    arrived_[(first_arrived_ + arrived_count_++) % arrived_.size()] = block;
  }
}

void DriveLane::fail(const BoundOp& op, const Error& error) { run_.stop(error.in(describe(run_.plan(), op.id))); }

}  // namespace sluice
