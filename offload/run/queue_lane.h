// A lane whose ops run in a device's queue.
//
// One thread puts ops in, as far ahead as it may: what an op waits for on the same device need only have been put in,
// and the device itself waits for it; what it waits for on the host must have finished. Another thread sleeps until the
// device has come to the next mark, and says that the op has finished: host lanes never ask the device.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/run/device_queue.h"
#include "offload/run/run_state.h"
#include "offload/run/step_ops.h"

namespace sluice {

class QueueLane {
 public:
  /// `queues`: [lane], null where a lane's work is the host's. All arguments outlive it.
  QueueLane(RunState& run, LaneId lane, StepOps& ops, const std::vector<DeviceQueue*>& queues);

  void put_in();   ///< thread one, until the run halts
  void collect();  ///< thread two, likewise; what was put in has ended when it returns

 private:
  bool ready(const BoundOp& op, std::uint64_t iteration, std::uint64_t mark);
  bool fail(const BoundOp& op, const Error& error);
  bool shares_device(std::uint32_t source) const;

  RunState& run_;
  LaneId lane_;
  StepOps& ops_;
  const std::vector<DeviceQueue*>& queues_;
  DeviceQueue& queue_;
  const BoundLane& bound_;
};

}  // namespace sluice
