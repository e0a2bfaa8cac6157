#include "src/model/cpu_kernels.h"
#include "src/model/sublayers-inl.h"

namespace sluice {

void run_sublayer(OpKind op, const SublayerArgs& args) { run_sublayer(CpuKernels(), op, args); }

}  // namespace sluice
