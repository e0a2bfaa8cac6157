// Arrays on the device with guards around them, and a fixture that skips where there is no device.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/stream.h"
#include "tests/kernels_vec/values.h"

namespace sluice::test {

namespace cuda = kernels::cuda;

inline void expect_success(cudaError_t error, const char* what) {
  ASSERT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

/// n elements, `shift` of them behind an address that cudaMalloc gave. Before and behind lie guards, which read() looks
/// at. What is not uploaded is poison: bytes of 0xff, NaN in every type.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t n, std::int64_t shift = 0)
      : n_(static_cast<std::size_t>(n)), begin_(guard + static_cast<std::size_t>(shift) * sizeof(T)) {
    expect_success(cudaMalloc(&memory_, bytes()), "cudaMalloc");
    std::vector<std::byte> all(bytes(), std::byte{0xa5});
    std::memset(all.data() + begin_, 0xff, n_ * sizeof(T));
    expect_success(cudaMemcpy(memory_, all.data(), bytes(), cudaMemcpyHostToDevice), "poison");
  }
  explicit DeviceArray(const std::vector<T>& host, std::int64_t shift = 0)
      : DeviceArray(static_cast<std::int64_t>(host.size()), shift) {
    write(host);
  }
  ~DeviceArray() { static_cast<void>(cudaFree(memory_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + begin_); }
  void write(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), n_);
    expect_success(cudaMemcpy(data(), host.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  /// What it holds, after everything that was launched; fails the test if something was written around it.
  std::vector<T> read() const {
    std::vector<std::byte> all(bytes());
    expect_success(cudaMemcpy(all.data(), memory_, bytes(), cudaMemcpyDeviceToHost), "download");
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < begin_ || i >= begin_ + n_ * sizeof(T)) && all[i] != std::byte{0xa5}) {
        ADD_FAILURE() << "written " << static_cast<std::int64_t>(i - begin_)
                      << " bytes from the beginning of an array of " << n_ * sizeof(T);
        break;
      }
    std::vector<T> out(n_);
    if (n_ > 0) std::memcpy(out.data(), all.data() + begin_, n_ * sizeof(T));
    return out;
  }

 private:
  static constexpr std::size_t guard = 512;
  std::size_t bytes() const { return begin_ + n_ * sizeof(T) + guard; }
  std::size_t n_, begin_;
  void* memory_ = nullptr;
};

/// Why kernels cannot run here; empty where they can.
inline std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  return count > 0 ? "" : "no CUDA device: the driver knows none";
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why;
    stream.emplace(nullptr);
    ASSERT_TRUE(stream->status().ok()) << stream->status().error().message;
  }
  void TearDown() override {
    if (!stream) return;
    const Status& status = stream->synchronize();
    EXPECT_TRUE(status.ok()) << status.error().message;
    // A device that has failed fails at whatever comes next: those tests would tell nothing.
    if (!status.ok()) GTEST_FLAG_SET(fail_fast, true);
  }
  std::optional<cuda::Stream> stream;
};

template <class T>
class TypedDeviceTest : public DeviceTest {};

}  // namespace sluice::test
