#include "src/device/cuda/backend.h"

#include "src/device/cuda/sublayers.h"
#include "src/device/cuda/update.h"

namespace sluice {

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(CudaDevice& device, const ModelSpec& model,
                                                         const RopeTable& rope, const SublayerOptions& options) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(device, model, options));
  SLUICE_TRY(device.make_current());
  SLUICE_ASSIGN(backend->gemm_, kernels::cuda::Gemm::create({}));
  SLUICE_ASSIGN(backend->compute_, device.make_queue(false));
  // Copies are short and others wait for them.
  SLUICE_ASSIGN(backend->h2d_, device.make_queue(true));
  SLUICE_ASSIGN(backend->d2h_, device.make_queue(true));
  backend->stream_ = std::make_unique<kernels::cuda::Stream>(backend->compute_->stream());
  if (!backend->stream_->status().ok()) return backend->stream_->status().error();
  backend->kernels_ = std::make_unique<CudaKernels>(*backend->stream_, *backend->gemm_);
  SLUICE_TRY(backend->load_rope(rope));
  return backend;
}

CudaBackend::~CudaBackend() {
  if (rope_memory_ != nullptr) device_.free(rope_memory_, rope_bytes_);
}

Status CudaBackend::load_rope(const RopeTable& rope) {
  const std::uint64_t half_bytes = rope.cos.size() * sizeof(float);
  if (half_bytes == 0) return success();
  rope_bytes_ = 2 * half_bytes;
  SLUICE_ASSIGN(rope_memory_, device_.allocate(rope_bytes_));
  SLUICE_TRY(device_.copy(rope_memory_, reinterpret_cast<const std::byte*>(rope.cos.data()), half_bytes));
  SLUICE_TRY(device_.copy(rope_memory_ + half_bytes, reinterpret_cast<const std::byte*>(rope.sin.data()), half_bytes));
  rope_ = view_of(rope);
  rope_.cos = reinterpret_cast<const float*>(rope_memory_);
  rope_.sin = reinterpret_cast<const float*>(rope_memory_ + half_bytes);
  return success();
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
  if (op.kind == OpKind::accumulate) {
    const Operand *src = nullptr, *dst = nullptr;
    for (const Operand& o : operands) (o.role == Role::src ? src : dst) = &o;
    kernels_->add_f32(reinterpret_cast<const float*>(src->data), reinterpret_cast<float*>(dst->data),
                      static_cast<std::int64_t>(dst->bytes / sizeof(float)));
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
