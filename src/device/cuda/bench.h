// What one CUDA GPU can do, measured with the queues and kernels that runs use.
#pragma once

#include <array>
#include <memory>

#include "src/device/cuda/device.h"
#include "src/device/cuda/kernels.h"
#include "src/device/device_bench.h"

namespace sluice {

class CudaBench final : public DeviceBench {
 public:
  /// The device must outlive it. Errors as CudaBackend::create.
  static Result<std::unique_ptr<DeviceBench>> create(CudaDevice& device, const KernelChoices& made);

  Status run(OpKind op, const SublayerArgs& args) override;
  Result<double> op_seconds(OpKind op, const SublayerArgs& args) override;
  KernelChoices used() override { return libraries_.used(); }
  Result<double> copy_seconds(Way way, std::uint64_t bytes, int copies) override;
  Result<double> mark_seconds() override;
  Result<double> gemm_seconds(const GemmShape& shape, Dtype dtype, Dtype result) override;
  Result<double> attention_seconds(const Attention& size, bool backward) override;
  Result<double> adamw_seconds(std::int64_t numel) override;

 private:
  /// Memory of the device, or locked memory of the host, that grows with what is measured and is kept.
  class Area {
   public:
    Area(CudaDevice& device, bool on_host) : device_(device), on_host_(on_host) {}
    ~Area() { release(); }
    Area(const Area&) = delete;
    Area& operator=(const Area&) = delete;
    /// Filled with random numbers of this type: products of equal ones draw less power and run faster.
    Result<std::byte*> at_least(std::uint64_t bytes, Dtype dtype = Dtype::f32);

   private:
    void release();
    CudaDevice& device_;
    bool on_host_;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
    Dtype filled_ = Dtype::f32;
  };
  /// A queue that counts its marks.
  struct Lane {
    std::unique_ptr<CudaQueue> queue;
    std::uint64_t marks = 0;
    Status mark() { return queue->mark(++marks); }
    Result<DeviceQueue::Ran> mark_and_await();
  };

  explicit CudaBench(CudaDevice& device)
      : device_(device), areas_{Area{device, false}, Area{device, false}, Area{device, true}, Area{device, true}} {}
  Status evict(int passes = 1);

  CudaDevice& device_;
  std::array<Area, 4> areas_;  ///< two of the device, two of the host
  Lane compute_, down_, up_;
  CudaLibraries libraries_;
  std::unique_ptr<kernels::cuda::Stream> stream_;
  std::unique_ptr<CudaKernels> kernels_;
};

}  // namespace sluice
