// The sublayers of src/model/sublayer.h on a CUDA device.
#pragma once

#include "src/device/cuda/kernels.h"
#include "src/model/sublayer.h"

namespace sluice {

/// Puts a compute op of a unit into the stream; all addresses in `args` are the device's.
Status run_sublayer_on_cuda(const CudaKernels& device, OpKind op, const SublayerArgs& args);

}  // namespace sluice
