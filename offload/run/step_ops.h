// What each op does, on every lane but the two that move data to and from the drive.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "offload/run/executor.h"

namespace sluice {

class StepOps {
 public:
  StepOps(const ExecutorParts& parts, const ExecutorOptions& options) : parts_(parts), options_(options) {}

  /// Room for one plan, so that run allocates nothing.
  void prepare(const StepPlan& plan, const BoundPlan& bound);
  Status run(const BoundOp& op, const StepParams& params);
  /// The same for an op of a lane that is a device's queue: copies, and what the backend computes.
  Status put_in(const BoundOp& op, const StepParams& params, DeviceQueue& queue);
  MovedBytes moved() const;  ///< all but the drive's

 private:
  Status copy(const BoundOp& op);
  void count(const BoundCopy& copy);
  Status grad_norm(const BoundOp& op, const StepParams& params);
  DeviceUpdate bind_update(const BoundOp& op, const StepParams& params) const;
  Status update(const BoundOp& op, const StepParams& params);
  Status verify(const BoundOp& op, const StepParams& params) const;
  StepParams of_update(std::size_t unit, StepParams params) const;
  Error diverged(std::uint64_t count, std::size_t unit, const StepParams& params) const;
  Status control(const BoundOp& op, const StepParams& params);
  Status step_end(const BoundOp& op, const StepParams& params);
  Status commit(const StepParams& params);
  Status all_gather(const BoundOp& op);
  Status reduce_scatter(const BoundOp& op);
  Status all_to_all(const BoundOp& op);
  Status ring_shift(const BoundOp& op);
  Status send(const BoundOp& op);
  Status receive(const BoundOp& op);
  std::size_t members(const Op& op) const;
  bool works_in_queue(LaneKind lane) const;

  const ExecutorParts& parts_;
  const ExecutorOptions& options_;
  const StepPlan* plan_ = nullptr;
  bool has_norms_ = false;
  bool expects_factor_ = false;     ///< updates do not wait for the norm, see StepParams::clip_factor
  std::vector<bool> updated_back_;  ///< by unit: in the backward pass
  bool mixes_ = false;              ///< others are updated ahead of the forward pass
  RankId rank_ = 0;
  std::unique_ptr<WorkerTeam> team_;
  std::unique_ptr<WorkerTeam> device_team_;  ///< for updates of a device that is the host
  std::vector<double> partial_;              ///< norms of the blocks of one tile
  ExactSum norm_, loss_;                     ///< of all ranks, in control
  /// Its gradient is not finite: nothing of it is used, and control says so. Compute asks too, where it updates.
  std::atomic<std::uint64_t> bad_step_{0};
  std::atomic<std::uint64_t> h2d_{0}, d2h_{0}, within_{0}, collective_{0}, message_{0};
};

}  // namespace sluice
