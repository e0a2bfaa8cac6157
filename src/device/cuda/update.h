// AdamW of the plan's tiles on a CUDA device.
#pragma once

#include "kernels/cuda/stream.h"
#include "offload/run/executor.h"

namespace sluice {

/// Puts an update op into the stream; the bits are those of update_tile on the host.
Status update_on_cuda(const DeviceUpdate& update, const StepParams& params, kernels::cuda::Stream& stream);

}  // namespace sluice
