#include "offload/run/save_lane.h"

namespace sluice {
namespace {

std::size_t states_of(const BoundOp& op) { return op.operands.size(); }

}  // namespace

void SaveLane::run() {
  for (std::uint64_t iteration = 0; run_iteration(iteration); ++iteration) {
  }
  // Memory is safe once nothing is under way.
  if (sink_ != nullptr && tiles_ > 0) sink_->finish(0);
}

/// False if the run has halted.
bool SaveLane::run_iteration(std::uint64_t iteration) {
  Progress& progress = run_.progress();
  if (!progress.await(lane_, run_.release_source(), iteration + 1)) return false;
  for (std::uint32_t other = 0; other < run_.barrier_lanes(); ++other)
    if (!progress.await(lane_, other, run_.finished_before(other, iteration))) return false;
  const StepParams& params = run_.params(iteration);
  const auto saves = [&](const BoundOp& op) {
    const bool back = run_.bound().mixes && run_.bound().updated_back[static_cast<std::size_t>(op.op->unit)];
    return sink_ != nullptr && (back ? params.saves_back : params.saves);
  };
  const std::vector<BoundOp>& ops = run_.bound().lanes[lane_].ops;
  iteration_ = iteration;
  begun_ = ended_ = tiles_ = 0;
  for (const BoundOp& op : ops) {
    for (const BoundWait& wait : op.waits)
      if (!this->wait(wait.source, run_.threshold(wait, iteration))) return false;
    if (progress.halted()) return false;
    if (!saves(op)) {
      while (ended_ < begun_) finish_oldest();  // ops end in order
      run_.finish_op(lane_, op, iteration, run_.start_op(lane_, op, iteration));
      ++begun_, ++ended_;
      continue;
    }
    if (begun_ - ended_ == ops_at_once) finish_oldest();
    begin(op);
  }
  while (ended_ < begun_) finish_oldest();
  return true;
}

/// What this lane has under way may be what others wait for, and so what is waited for here.
bool SaveLane::wait(std::size_t source, std::uint64_t threshold) {
  while (run_.progress().count(source) < threshold && ended_ < begun_) finish_oldest();
  return run_.progress().await(lane_, source, threshold);
}

void SaveLane::begin(const BoundOp& op) {
  started_[begun_++ % started_.size()] = run_.start_op(lane_, op, iteration_);
  for (std::size_t i = 0; i < state_names.size(); ++i) {
    const auto state = static_cast<StateKind>(i);
    if (const Operand* const operand = op.find(role_of(state)))
      sink_->begin({op.op->unit, state, op.op->element, {operand->data, operand->bytes}});
  }
  tiles_ += states_of(op);
}

void SaveLane::finish_oldest() {
  const BoundOp& op = run_.bound().lanes[lane_].ops[ended_];
  tiles_ -= states_of(op);
  sink_->finish(tiles_);
  run_.finish_op(lane_, op, iteration_, started_[ended_++ % started_.size()]);
}

}  // namespace sluice
