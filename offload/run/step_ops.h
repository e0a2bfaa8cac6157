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

  /// Room for one plan: scratch per rank, so that run allocates nothing.
  void prepare(const StepPlan& plan, const BoundPlan& bound);
  Status run(RankId rank, const BoundOp& op, const StepParams& params);
  /// The same for an op of a lane that is a device's queue: copies, and what the rank's backend computes.
  Status put_in(RankId rank, const BoundOp& op, const StepParams& params, DeviceQueue& queue);
  MovedBytes moved() const;  ///< all but the drive's

 private:
  struct RankScratch {
    std::unique_ptr<WorkerTeam> team;
    std::unique_ptr<WorkerTeam> device_team;  ///< for updates of a device that is the host
    std::vector<double> partial;              ///< norms of the blocks of one tile
    std::vector<double> all;                  ///< what all ranks measured
  };
  Status copy(const BoundOp& op);
  void count(const BoundCopy& copy);
  Status grad_norm(RankId rank, const BoundOp& op, const StepParams& params);
  DeviceUpdate bind_update(const BoundOp& op, const StepParams& params) const;
  Status update(RankId rank, const BoundOp& op, const StepParams& params);
  Status verify(const BoundOp& op, const StepParams& params) const;
  Error diverged(std::uint64_t count, std::size_t unit, const StepParams& params) const;
  Status control(RankId rank, const BoundOp& op, const StepParams& params);
  Status step_end(RankId rank, const BoundOp& op, const StepParams& params);
  Status commit(RankId rank, const StepParams& params);
  Status all_gather(RankId rank, const BoundOp& op);
  Status reduce_scatter(RankId rank, const BoundOp& op);
  Meeting meeting(RankId rank, const Op& op) const;
  bool works_in_queue(RankId rank, LaneKind lane) const;

  const ExecutorParts& parts_;
  const ExecutorOptions& options_;
  const StepPlan* plan_ = nullptr;
  bool has_norms_ = false;
  std::vector<RankId> everyone_;
  std::vector<RankScratch> scratch_;
  std::atomic<std::uint64_t> h2d_{0}, d2h_{0}, within_{0}, collective_{0};
};

}  // namespace sluice
