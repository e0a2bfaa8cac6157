#include "src/device/cuda/update.h"

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/copy.h"

namespace sluice {

Status update_on_cuda(const DeviceUpdate& update, const StepParams& params, kernels::cuda::Stream& stream) {
  if (update.first) kernels::cuda::zero(update.diverged, sizeof *update.diverged, stream);
  for (std::span<const UpdateChunk> left = update.chunks; !left.empty();) {
    const UpdateChunk chunk = take_long_chunk(left, update.tile.moments);
    const AdamwCall call = adamw_call(update.tile, chunk, params, update.clip_factor);
    kernels::cuda::adamw(call.step, call.range, update.diverged, stream);
  }
  return stream.status();
}

}  // namespace sluice
