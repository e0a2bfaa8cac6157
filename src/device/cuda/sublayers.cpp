#include "src/device/cuda/sublayers.h"

#include "src/model/sublayers-inl.h"

namespace sluice {

Status run_sublayer_on_cuda(const CudaKernels& device, OpKind op, const SublayerArgs& args) {
  run_sublayer(device, op, args);
  return device.status();
}

}  // namespace sluice
