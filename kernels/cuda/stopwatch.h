// Seconds of work in a stream, by the device's own clock. For sources that include the toolkit's headers.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

/// Two events around what is timed.
class Stopwatch {
 public:
  Stopwatch() { ok_ = cudaEventCreate(&begin_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    if (begin_ != nullptr) static_cast<void>(cudaEventDestroy(begin_));
    if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
  }
  bool begin(const Stream& stream) { return ok_ && cudaEventRecord(begin_, stream.handle()) == cudaSuccess; }
  /// Waits for the stream. Negative if the device failed.
  double seconds(const Stream& stream) {
    float milliseconds = 0;
    if (cudaEventRecord(end_, stream.handle()) != cudaSuccess || cudaEventSynchronize(end_) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, begin_, end_) != cudaSuccess)
      return -1;
    return static_cast<double>(milliseconds) / 1e3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  bool ok_ = false;
};

}  // namespace sluice::kernels::cuda
