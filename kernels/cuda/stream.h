// Where CUDA kernels are launched: a stream of the calling thread's current device, and the first error on it. This and
// the other headers of kernels/cuda need nothing of the CUDA toolkit.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "sluice/status.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace sluice::kernels::cuda {

/// Does not own the stream. Every kernel takes one as its last argument, runs in its order, and returns when it is
/// launched; pointers are the device's. A launch that fails is remembered with the kernel's name, and launches after it
/// do nothing: as with an ostream, asking once behind a sequence of kernels is enough. One thread at a time.
class Stream {
 public:
  /// Of the device that is current; asks it for its size. Check status() afterwards.
  explicit Stream(CUstream_st* handle);

  CUstream_st* handle() const { return handle_; }
  int multiprocessors() const { return multiprocessors_; }
  std::size_t shared_bytes_max() const { return static_cast<std::size_t>(shared_bytes_max_); }  ///< of a block
  const Status& status() const { return status_; }

  /// Waits until all that was launched has run. What went wrong while kernels ran shows here and not before; the
  /// message names the last one that was launched.
  const Status& synchronize();

  /// For the launchers.
  void launched(const char* kernel) { last_ = kernel; }
  void fail(const std::string& what, int error);
  /// Whether the driver has been told that this kernel takes so much dynamic shared memory: once will do.
  bool may_share(const void* kernel, std::size_t bytes) const;
  void shares(const void* kernel, std::size_t bytes) { sharing_.emplace_back(kernel, bytes); }

 private:
  CUstream_st* handle_;
  int multiprocessors_ = 1, shared_bytes_max_ = 0;
  std::vector<std::pair<const void*, std::size_t>> sharing_;
  const char* last_ = "no kernel";
  Status status_;
};

}  // namespace sluice::kernels::cuda
