#include "offload/run/queue_lane.h"

#include "offload/plan/finish.h"

namespace sluice {

QueueLane::QueueLane(RunState& run, LaneId lane, StepOps& ops, const std::vector<DeviceQueue*>& queues)
    : run_(run), lane_(lane), ops_(ops), queues_(queues), queue_(*queues[lane]), bound_(run.bound().lanes[lane]) {}

bool QueueLane::fail(const BoundOp& op, const Error& error) {
  run_.stop(error.in(describe(run_.plan(), op.id)));
  return false;
}

bool QueueLane::shares_device(std::uint32_t source) const {
  return source < queues_.size() && queues_[source] != nullptr;
}

/// Waits that the device does not do itself, and then those that it does.
bool QueueLane::ready(const BoundOp& op, std::uint64_t iteration, std::uint64_t mark) {
  Progress& progress = run_.progress();
  if (mark > DeviceQueue::marks_in_flight && !progress.await(lane_, lane_, mark - DeviceQueue::marks_in_flight))
    return false;
  for (const BoundWait& wait : op.waits) {
    const std::uint64_t threshold = run_.threshold(wait, iteration);
    const bool on_device = shares_device(wait.source);
    if (!progress.await(lane_, on_device ? run_.put_in_source(wait.source) : wait.source, threshold)) return false;
    // Its mark may be set anew by now, for an op that was put in before this one: then the device waits for a little
    // more than it had to, and never for itself.
    if (!on_device || progress.count(wait.source) >= threshold) continue;
    if (const Status waits = queue_.wait_for(*queues_[wait.source], threshold); !waits.ok())
      return fail(op, waits.error());
  }
  return true;
}

void QueueLane::put_in() {
  put_in_until_halt();
  complete_.store(true);
  complete_.notify_one();
}

void QueueLane::put_in_until_halt() {
  Progress& progress = run_.progress();
  std::uint64_t mark = 0;
  for (std::uint64_t iteration = 0;; ++iteration) {
    if (!progress.await(lane_, run_.release_source(), iteration + 1)) return;
    for (std::uint32_t other = 0; other < run_.barrier_lanes(); ++other)
      if (!progress.await(lane_, other, run_.finished_before(other, iteration))) return;
    for (const BoundOp& op : bound_.ops) {
      ++mark;
      if (!ready(op, iteration, mark) || progress.halted()) return;
      run_.start_op(lane_, op, iteration);
      Status done = ops_.put_in(op, run_.params(iteration), queue_);
      // Also behind a failure: some of the op may be in the queue, and must have ended before memory goes.
      const Status marked = queue_.mark(mark);
      if (done.ok()) done = marked;
      if (!done.ok()) fail(op, done.error());
      if (marked.ok()) progress.publish(run_.put_in_source(lane_), mark);
      if (!done.ok()) return;
    }
  }
}

void QueueLane::collect() {
  Progress& progress = run_.progress();
  std::uint64_t mark = 0;
  bool failed = false;
  for (std::uint64_t iteration = 0;; ++iteration)
    for (const BoundOp& op : bound_.ops) {
      ++mark;
      // Also behind a halt: what was put in, by a thread that may not have heard of it yet, reads and writes memory
      // until it has ended.
      if (!progress.await(run_.collector(lane_), run_.put_in_source(lane_), mark)) {
        complete_.wait(false);
        if (progress.count(run_.put_in_source(lane_)) < mark) {
          if (failed) queue_.abandon();  // what was put in since
          return;
        }
      }
      const Result<DeviceQueue::Ran> ran = queue_.await(mark);
      if (!ran.ok() && !failed) {
        failed = !fail(op, ran.error());
        // Not before everyone knows: what follows on other lanes would take for data what is none.
        queue_.abandon();
      }
      if (!failed) run_.finish_op(lane_, op, iteration, *ran);
    }
}

}  // namespace sluice
