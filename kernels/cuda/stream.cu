#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/stream.h"

namespace sluice::kernels::cuda {

Stream::Stream(CUstream_st* handle) : handle_(handle) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared_bytes_max_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) fail("no CUDA device", error);
}

bool Stream::may_share(const void* kernel, std::size_t bytes) const {
  return std::any_of(sharing_.begin(), sharing_.end(),
                     [&](const auto& known) { return known.first == kernel && known.second >= bytes; });
}

const Status& Stream::synchronize() {
  if (!status_) return status_;
  const cudaError_t error = cudaStreamSynchronize(handle_);
  if (error != cudaSuccess) fail(std::string("CUDA kernels up to ") + last_ + " failed", error);
  return status_;
}

void Stream::fail(const std::string& what, int error) {
  const auto code = static_cast<cudaError_t>(error);
  if (status_)
    static_cast<void>(status_ = fault(what + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"));
}

}  // namespace sluice::kernels::cuda
