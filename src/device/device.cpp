#include "src/device/device.h"

#include <charconv>

#include "src/device/cpu_backend.h"
#include "src/device/cpu_bench.h"
#ifdef SLUICE_HAS_CUDA
#include "src/device/cuda/backend.h"
#include "src/device/cuda/bench.h"
#include "src/device/cuda/nccl_collectives.h"
#endif

namespace sluice {
namespace {

class CpuDevice final : public Device {
 public:
  DeviceMemory& memory() override { return memory_; }
  Result<std::unique_ptr<ComputeBackend>> make_backend(const ModelSpec& model, const RopeView& rope,
                                                       const SublayerOptions& options) override {
    return std::unique_ptr<ComputeBackend>(std::make_unique<CpuBackend>(model, rope, options));
  }
  Result<std::unique_ptr<DeviceBench>> make_bench(int threads, const KernelChoices&) override {
    return CpuBench::create(threads);
  }
  std::string kind() const override { return ""; }
  std::string description() const override { return "host memory"; }
  Result<std::uint64_t> free_bytes() const override { return std::uint64_t{0}; }

 private:
  HostDevice memory_;
};

#ifdef SLUICE_HAS_CUDA
class GpuDevice final : public Device {
 public:
  explicit GpuDevice(std::unique_ptr<CudaDevice> device) : device_(std::move(device)) {}
  DeviceMemory& memory() override { return *device_; }
  Result<std::unique_ptr<ComputeBackend>> make_backend(const ModelSpec& model, const RopeView& rope,
                                                       const SublayerOptions& options) override {
    SLUICE_ASSIGN(std::unique_ptr<CudaBackend> backend, CudaBackend::create(*device_, model, rope, options));
    return std::unique_ptr<ComputeBackend>(std::move(backend));
  }
  Result<std::unique_ptr<DeviceCollectives>> make_collectives() override {
    SLUICE_ASSIGN(std::unique_ptr<NcclCollectives> made, NcclCollectives::create(*device_));
    return std::unique_ptr<DeviceCollectives>(std::move(made));
  }
  Result<std::unique_ptr<DeviceBench>> make_bench(int, const KernelChoices& made) override {
    return CudaBench::create(*device_, made);
  }
  std::string kind() const override { return device_->kind(); }
  std::string description() const override { return device_->name(); }
  int numa_node() const override { return device_->numa_node(); }
  Result<std::uint64_t> free_bytes() const override { return device_->free_bytes(); }

 private:
  std::unique_ptr<CudaDevice> device_;
};
#endif

/// -1: the CPU; else which GPU.
Result<int> parse_device(const std::string& name) {
  if (name == "cpu") return -1;
  int index = 0;
  const std::string number = name == "cuda" ? "0" : name.starts_with("cuda:") ? name.substr(5) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (number.empty() || error != std::errc() || end != number.data() + number.size() || index < 0)
    return bad_request("--device " + name + ": give cpu, cuda or cuda:N");
#ifndef SLUICE_HAS_CUDA
  return bad_request("--device " + name +
                     ": this sluice was built without CUDA; build it where a CUDA toolkit is, or "
                     "compute on --device cpu");
#else
  return index;
#endif
}

}  // namespace

Result<std::unique_ptr<Device>> Device::open(const std::string& name) {
  SLUICE_ASSIGN(const int index, parse_device(name));
#ifdef SLUICE_HAS_CUDA
  if (index >= 0) {
    Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(index);
    if (!device.ok()) return device.error().in("--device " + name);
    return std::unique_ptr<Device>(std::make_unique<GpuDevice>(std::move(*device)));
  }
#endif
  (void)index;
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>());
}

Result<int> count_devices(const std::string& name) {
  SLUICE_TRY(parse_device(name));
#ifdef SLUICE_HAS_CUDA
  if (name == "cuda") {
    Result<int> count = CudaDevice::count();
    return count.ok() ? count : count.error().in("--device " + name);
  }
#endif
  return 1;
}

Status check_device_collectives() {
#ifdef SLUICE_HAS_CUDA
  const auto nccl = kernels::cuda::Nccl::open();
  return nccl.ok() ? success() : Status(nccl.error());
#else
  return bad_request("this sluice was built without CUDA");
#endif
}

std::vector<std::string> visible_gpus() {
#ifdef SLUICE_HAS_CUDA
  return CudaDevice::identities();
#else
  return {};
#endif
}

std::string device_of_rank(const std::string& name, int devices, int place) {
  return devices == 1 ? name : name + ":" + std::to_string(place % devices);
}

Result<const KernelSizes*> kernel_sizes_of(const std::string& name) {
  SLUICE_ASSIGN(const int index, parse_device(name));
#ifdef SLUICE_HAS_CUDA
  if (index >= 0) return &cuda_kernel_sizes;
#endif
  (void)index;
  return &cpu_kernel_sizes;
}

}  // namespace sluice
