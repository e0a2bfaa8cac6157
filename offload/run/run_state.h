// What the lanes of one bound plan share, from Executor::begin to end: progress, parameters of the iterations, the
// first error, measurements.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "offload/plan/simulate.h"
#include "offload/run/bound_plan.h"
#include "offload/run/communicator.h"
#include "offload/run/device_queue.h"
#include "offload/run/moved_bytes.h"
#include "offload/run/poison.h"
#include "offload/run/progress.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

class RunState {
 public:
  static constexpr std::uint32_t max_released = 4;

  struct Options {
    bool record_timeline = false;
    std::uint64_t delay_seed = 0;
    bool has_queues = false;  ///< of devices: their lanes need another count and another waiter
  };
  RunState(const StepPlan& plan, BoundPlan bound, const Memory& memory, Communicator* communicator, Options options);

  const StepPlan& plan() const { return plan_; }
  const BoundPlan& bound() const { return bound_; }
  Progress& progress() { return progress_; }

  // ---- the controlling thread
  Status release(const StepParams& params);
  Status wait(std::uint64_t iteration);
  std::uint64_t released() const { return released_; }
  Timeline timeline() const;
  std::uint64_t peak_bytes(Tier tier) const;
  MovedBytes moved(std::uint64_t iteration) const;

  // ---- any thread
  void stop(const Error& reason);  ///< cancelled errors that follow the first are its echo and not counted
  void halt() { progress_.halt(); }
  std::optional<Error> first_error() const;
  std::uint64_t errors() const;

  // ---- lane threads
  std::size_t release_source() const { return plan_.lanes.size(); }
  /// Counts the ops of a lane that are in a device's queue, finished or not.
  std::size_t put_in_source(LaneId lane) const { return plan_.lanes.size() + 1 + lane; }
  /// Waiter for the thread that collects what a lane's queue has done.
  std::size_t collector(LaneId lane) const { return plan_.lanes.size() + 1 + lane; }
  const StepParams& params(std::uint64_t iteration) const { return params_[iteration % params_.size()]; }
  /// What is behind and has no update due stays as it was committed: the write is left out.
  bool leaves_out(const BoundOp& op, const BoundTransfer& transfer, std::uint64_t iteration) const {
    return op.op->kind == OpKind::write && plan_.buffers[transfer.buffer].behind && params(iteration).update_step == 0;
  }
  /// How far the op's lane has to be for the wait to be over; 0 if it already is.
  std::uint64_t threshold(const BoundWait& wait, std::uint64_t iteration) const;
  /// Iterations of a plan that is not cyclic do not overlap: each lane then starts one when these many lanes have
  /// finished the one before.
  std::size_t barrier_lanes() const { return plan_.cyclic ? 0 : plan_.lanes.size(); }
  std::uint64_t finished_before(std::size_t lane, std::uint64_t iteration) const {
    return iteration * bound_.lanes[lane].ops.size();
  }
  double start_op(LaneId lane, const BoundOp& op, std::uint64_t iteration);
  void finish_op(LaneId lane, const BoundOp& op, std::uint64_t iteration, double started);
  void finish_op(LaneId lane, const BoundOp& op, std::uint64_t iteration, const DeviceQueue::Ran& ran);

 private:
  using Clock = std::chrono::steady_clock;
  struct Times {
    double start = 0, end = 0;
  };
  /// Written by its lane, read by anyone.
  struct alignas(64) LaneRecord {
    std::uint64_t finished = 0;
    std::array<std::atomic<std::uint64_t>, 3> alive_end{};
    std::array<MovedBytes, max_released + 1> moved{};  ///< ring by iteration
  };
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  void finish(LaneId lane, const BoundOp& op, std::uint64_t iteration, const Times& times);
  void delay(LaneId lane, const BoundOp& op, std::uint64_t iteration, std::uint64_t moment) const;

  const StepPlan& plan_;
  BoundPlan bound_;
  Progress progress_;
  Communicator* communicator_;
  Options options_;
  Clock::time_point begin_ = Clock::now();
  std::array<StepParams, max_released + 1> params_{};
  std::uint64_t released_ = 0, waited_ = 0;
  std::vector<Times> times_;  ///< [iteration % (max_released + 1)][op]
  std::vector<LaneRecord> records_;
  std::unique_ptr<Poisoner> poisoner_;  ///< null where freed bytes are not poisoned

  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
  std::uint64_t errors_ = 0;
};

}  // namespace sluice
