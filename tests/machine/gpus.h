// Several modelled GPUs, one of each rank, from one thread: communicators block nobody.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cuda/nccl.h"
#include "tests/machine/card.h"

namespace sluice::test {

/// A rank's end: its device, a stream there, and memory.
class NcclEnd {
 public:
  explicit NcclEnd(int device) : device_(device) {
    use();
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, 1, 0), cudaSuccess);
  }
  ~NcclEnd() {
    use();
    comm.reset();
    cudaStreamDestroy(stream);
    for (void* p : memory_) cudaFree(p);
  }
  NcclEnd(const NcclEnd&) = delete;
  NcclEnd& operator=(const NcclEnd&) = delete;

  void use() const { cudaSetDevice(device_); }
  template <class T>
  T* put(const std::vector<T>& values) {
    use();
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    memory_.push_back(p);
    return static_cast<T*>(p);
  }
  /// Behind what is in the stream.
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) const {
    use();
    std::vector<T> values(count);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  /// Until it has settled; its error where it does not.
  Status settle() {
    use();
    for (;;) {
      const Result<bool> settled = comm->has_settled();
      if (!settled.ok()) return settled.error();
      if (*settled) return success();
      std::this_thread::yield();
    }
  }

  cudaStream_t stream = nullptr;
  std::unique_ptr<kernels::cuda::NcclCommunicator> comm;

 private:
  int device_;
  std::vector<void*> memory_;
};

inline std::vector<std::unique_ptr<NcclEnd>> ends_on(const std::vector<int>& devices) {
  std::vector<std::unique_ptr<NcclEnd>> ends;
  for (const int device : devices) ends.push_back(std::make_unique<NcclEnd>(device));
  return ends;
}

}  // namespace sluice::test
