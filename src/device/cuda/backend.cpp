#include "src/device/cuda/backend.h"

#include "offload/run/quantized_pieces.h"
#include "src/device/cuda/sublayers.h"
#include "src/device/cuda/update.h"

namespace sluice {

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(CudaDevice& device, const ModelSpec& model,
                                                         const RopeView& rope, const SublayerOptions& options) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(model, rope, options));
  SLUICE_TRY(device.make_current());
  SLUICE_ASSIGN(backend->libraries_, CudaLibraries::open(options.kernels, false));
  SLUICE_ASSIGN(backend->compute_, device.make_queue(false));
  // Copies are short and others wait for them.
  SLUICE_ASSIGN(backend->h2d_, device.make_queue(true));
  SLUICE_ASSIGN(backend->d2h_, device.make_queue(true));
  backend->stream_ = std::make_unique<kernels::cuda::Stream>(backend->compute_->stream());
  if (!backend->stream_->status().ok()) return backend->stream_->status().error();
  backend->kernels_ = std::make_unique<CudaKernels>(*backend->stream_, backend->libraries_);
  return backend;
}

DeviceQueue* CudaBackend::queue(LaneKind kind) {
  switch (kind) {
    case LaneKind::compute: return compute_.get();
    case LaneKind::h2d: return h2d_.get();
    case LaneKind::d2h: return d2h_.get();
    default: return nullptr;
  }
}

Status CudaBackend::run(const StepPlan& plan, const Op& op, std::span<const Operand> operands,
                        const StepParams& params) {
  SLUICE_TRY(compute_->begin());
  const OpRanges::Range range(ranges_, op);
  if (op.kind == OpKind::accumulate) {
    const Operand *src = nullptr, *dst = nullptr;
    for (const Operand& o : operands) (o.role == Role::src ? src : dst) = &o;
    kernels_->add_f32(reinterpret_cast<const float*>(src->data), reinterpret_cast<float*>(dst->data),
                      static_cast<std::int64_t>(dst->bytes / sizeof(float)));
    return kernels_->status();
  }
  if (quantizes(op.kind)) {
    const Operand *src = nullptr, *dst = nullptr;
    for (const Operand& o : operands) (o.role == Role::src ? src : dst) = &o;
    each_quantized(op, *src, *dst, *kernels_);
    return kernels_->status();
  }
  SublayerArgs args = bind_sublayer(model_, options_, plan, op, operands, params);
  args.rope = rope_;
  // The flat gradient is padded to whole shards: the padding is ours to clear.
  const std::span<std::byte> padding = gradient_padding(args, op, operands);
  if (!padding.empty()) kernels_->zero(padding.data(), padding.size());
  return run_sublayer_on_cuda(*kernels_, op.kind, args);
}

Status CudaBackend::update(const DeviceUpdate& update, const StepParams& params) {
  SLUICE_TRY(compute_->begin());
  return update_on_cuda(update, params, *stream_);
}

}  // namespace sluice
