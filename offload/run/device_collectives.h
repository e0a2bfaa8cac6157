// Collectives between ranks whose buffers lie in the memories of their devices (NCCL). They are work of one queue of
// the device, so that one thread issues those of all groups, in the order of the plan.
#pragma once

#include <span>

#include "offload/run/bound_plan.h"
#include "offload/run/communicator.h"
#include "offload/run/device_queue.h"
#include "sluice/plan.h"
#include "sluice/status.h"

namespace sluice {

class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;
  /// The same for as long as this lives. Its await ends with an error where `ranks` of connect() say so.
  virtual DeviceQueue& queue() = 0;
  /// Meets the members of every group that has ops on this lane of the plan, on the thread that will put them in and
  /// before it does. `ranks` was prepared for the plan and lasts as long; nobody else uses those channels of it.
  virtual Status connect(const StepPlan& plan, LaneId lane, Communicator& ranks) = 0;
  /// all_gather, reduce_scatter, all_to_all and ring_shift. Does not wait for other ranks' data.
  virtual Status put_in(const Op& op, std::span<const Operand> operands) = 0;
};

}  // namespace sluice
