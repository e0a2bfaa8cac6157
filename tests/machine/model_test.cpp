// What the model of a device owes to those who are tested with it: order, and no forgiveness.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/machine/card.h"

namespace sluice::test {
namespace {

class Model : public CardTest {
 protected:
  static cudaStream_t stream() {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithPriority(&made, 1, 0), cudaSuccess);
    return made;
  }
  static cudaEvent_t event() {
    cudaEvent_t made = nullptr;
    EXPECT_EQ(cudaEventCreate(&made), cudaSuccess);
    return made;
  }
  static std::byte* memory(std::size_t bytes) {
    void* made = nullptr;
    EXPECT_EQ(cudaMalloc(&made, bytes), cudaSuccess);
    return static_cast<std::byte*>(made);
  }
  /// Work that waits for the test.
  struct Gate {
    std::atomic<bool> open{false};
    void put_into(cudaStream_t stream) {
      simt_submit(stream, [this] { open.wait(false); });
    }
    void let() {
      open = true;
      open.notify_all();
    }
  };
};

TEST_F(Model, StreamsKeepTheirOrderBesideTheHostAndEachOther) {
  const cudaStream_t one = stream(), two = stream();
  std::vector<int> seen;
  Gate gate;
  gate.put_into(one);
  for (int i = 0; i < 3; ++i) simt_submit(one, [&seen, i] { seen.push_back(i); });
  std::atomic<bool> other{false};
  simt_submit(two, [&] { other = true; });
  EXPECT_EQ(cudaStreamSynchronize(two), cudaSuccess);
  EXPECT_TRUE(other);
  EXPECT_TRUE(seen.empty());
  gate.let();
  EXPECT_EQ(cudaStreamSynchronize(one), cudaSuccess);
  EXPECT_EQ(seen, (std::vector{0, 1, 2}));
  cudaStreamDestroy(one), cudaStreamDestroy(two);
}

TEST_F(Model, AWaitIsForTheRecordThatWasMadeBeforeIt) {
  const cudaStream_t one = stream(), two = stream();
  const cudaEvent_t mark = event();
  std::atomic<int> ran{0};
  EXPECT_EQ(cudaStreamWaitEvent(two, mark, 0), cudaSuccess);  // not recorded: nothing to wait for
  simt_submit(two, [&] { ++ran; });
  EXPECT_EQ(cudaStreamSynchronize(two), cudaSuccess);
  EXPECT_EQ(ran, 1);
  Gate first, second;
  first.put_into(one);
  cudaEventRecord(mark, one);
  cudaStreamWaitEvent(two, mark, 0);
  simt_submit(two, [&] { ++ran; });
  second.put_into(one);
  cudaEventRecord(mark, one);  // anew: who waits already waits for the other
  EXPECT_EQ(ran, 1);
  first.let();
  EXPECT_EQ(cudaStreamSynchronize(two), cudaSuccess);
  EXPECT_EQ(ran, 2);
  second.let();
  EXPECT_EQ(cudaEventSynchronize(mark), cudaSuccess);
  cudaStreamDestroy(one), cudaStreamDestroy(two), cudaEventDestroy(mark);
}

TEST_F(Model, TimeIsToldOfEventsThatHaveBeenReached) {
  const cudaStream_t s = stream();
  const cudaEvent_t begin = event(), end = event();
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle);
  Gate gate;
  cudaEventRecord(begin, s);
  gate.put_into(s);
  cudaEventRecord(end, s);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  gate.let();
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  cudaStreamDestroy(s), cudaEventDestroy(begin), cudaEventDestroy(end);
}

TEST_F(Model, CopiesNameMemoryThatIsThere) {
  const cudaStream_t s = stream();
  std::byte* const device = memory(1000);
  std::array<std::byte, 1000> host{}, other{};
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 1000, cudaMemcpyDefault, s), cudaErrorInvalidValue) << "unregistered";
  EXPECT_EQ(cudaMemcpyAsync(device, host.data(), 1000, cudaMemcpyDefault, cudaStreamPerThread), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(host.data(), host.size(), 1), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(host.data() + 500, 10, 1), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaMemsetAsync(device, 7, 1000, s), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device, 1000, cudaMemcpyDefault, s), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(other.data(), device, 1000, cudaMemcpyDefault, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device + 1, 1000, cudaMemcpyDefault, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device - 1, 1, cudaMemcpyDefault, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device + 1, 0, 1000, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(host[999], std::byte{7});
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device, 0, 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaStreamDestroy(s);
}

TEST_F(Model, DeviceMemoryIsOutOfTheHostsReach) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(*memory(1000) = std::byte{1}, "");
  EXPECT_DEATH(
      {
        std::byte* const p = memory(1024);
        simt_submit(nullptr, [p] { p[1024] = std::byte{1}; });
      },
      "");
  EXPECT_DEATH(
      {
        std::byte* const p = memory(1024);
        cudaFree(p);
        simt_submit(nullptr, [p] { *p = std::byte{1}; });
      },
      "");
}

/// Also while the device works, where the processor has protection keys.
TEST_F(Model, DeviceMemoryIsOfTheThreadsThatWorkOnIt) {
  const int key = pkey_alloc(0, 0);
  if (key < 0) GTEST_SKIP() << "no protection keys";
  pkey_free(key);
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        std::byte* const p = memory(1000);
        std::atomic<bool> runs = false;
        Gate gate;
        const cudaStream_t s = stream();
        simt_submit(s, [&] {
          runs = true;
          runs.notify_all();
        });
        gate.put_into(s);
        runs.wait(false);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        *p = std::byte{1};
        std::_Exit(0);
      },
      "");
}

TEST_F(Model, AFailureIsForGood) {
  put_in({.fails_at = 2});
  const cudaStream_t s = stream();
  const cudaEvent_t mark = event();
  std::byte* const device = memory(256);
  int ran = 0;
  for (int i = 0; i < 3; ++i) simt_submit(s, [&ran] { ++ran; });
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorECCUncorrectable);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaEventRecord(mark, s), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaEventSynchronize(mark), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaMemset(device, 0, 1), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  cudaFree(device), cudaStreamDestroy(s), cudaEventDestroy(mark);
}

TEST_F(Model, OthersTakeMemoryToo) {
  put_in({.memory = 3000, .taken = 1000, .allocations = 2});
  std::size_t unused = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&unused, &total), cudaSuccess);
  EXPECT_EQ(unused, 2000u);
  EXPECT_EQ(total, 3000u);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 2001), cudaErrorMemoryAllocation);
  std::byte *const one = memory(100), *const two = memory(100);
  EXPECT_EQ(cudaMalloc(&p, 100), cudaErrorMemoryAllocation);
  cudaFree(one), cudaFree(two);
}

}  // namespace
}  // namespace sluice::test
