// Host tensors on the device and back.
#pragma once

#include "tests/kernels_cuda/device.h"
#include "tests/kernels_gemm/tensors.h"

namespace sluice::test {

/// Of a host tensor's bytes, as far behind an aligned address as it says. The tensor outlives it.
class DeviceCopy {
 public:
  explicit DeviceCopy(kernels::Tensor& host, std::int64_t shift_bytes = 0)
      : host_(host), array_({host.bytes().begin(), host.bytes().end()}, shift_bytes) {}
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(array_.data());
  }
  void* data() { return array_.data(); }
  void download() {
    const std::vector<std::byte> got = array_.read();
    std::memcpy(host_.data(), got.data(), got.size());
  }

 private:
  kernels::Tensor& host_;
  DeviceArray<std::byte> array_;
};

}  // namespace sluice::test
