// One CUDA GPU: its memory, and queues that are its streams. The rest of the engine sees DeviceMemory and DeviceQueue.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/run/device_queue.h"
#include "offload/run/memory.h"
#include "sluice/status.h"

struct CUstream_st;

namespace sluice {

class CudaQueue;

/// Drivers of 2025 (r580) and later refuse to register 512 GiB at once. Pieces end at multiples of this, a power of
/// two, and no copy reaches over such an end, since a driver need not take two registrations for one. Tests make it
/// smaller.
std::uint64_t& pinned_piece_bytes();

/// Compute ops, copies down and copies up work beside each other, each in a queue of its own.
class CudaDevice final : public DeviceMemory {
 public:
  /// `index` as the driver counts. bad_request in one line when there is no driver, when it is older than what this
  /// program was built for, when there is no such device, or when it lacks the arithmetic (compute capability 8.0).
  static Result<std::unique_ptr<CudaDevice>> open(int index);

  /// At least one; bad_request where there is no driver, or it knows of none.
  static Result<int> count();
  /// Of each, its UUID, or its number where the driver tells none. No context is made.
  static std::vector<std::string> identities();

  /// One cudaMalloc. bad_request with what is free when there is not enough of it, beside what has to stay free.
  Result<std::byte*> allocate(std::uint64_t bytes) override;
  void free(std::byte* address, std::uint64_t bytes) override;
  Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) override;
  Status fill(std::byte* dst, std::byte value, std::uint64_t bytes) override;
  /// Page-locks and maps an arena of the host, in pieces. bad_request, naming the limit, when it may not be locked.
  Status pin(std::byte* host, std::uint64_t bytes) override;
  void unpin(std::byte* host, std::uint64_t bytes) override;
  bool pinning_locks() const override { return true; }

  Result<std::unique_ptr<CudaQueue>> make_queue(bool urgent);

  Status make_current() const;  ///< for the calling thread
  int index() const { return index_; }
  const std::string& kind() const { return kind_; }  ///< "NVIDIA H200"
  const std::string& name() const { return name_; }  ///< "NVIDIA H200 (cuda:0)"
  int numa_node() const;                             ///< that it is next to; -1 where the driver does not know
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t cache_bytes() const { return cache_bytes_; }
  /// What may be allocated. Some of what is free stays so: code of kernels, ours and the libraries', goes to the device
  /// when they are first launched, which is when the arenas have been taken.
  Result<std::uint64_t> free_bytes() const;

 private:
  CudaDevice() = default;
  Result<std::uint64_t> unused_bytes() const;
  std::uint64_t reserve_bytes() const;
  int index_ = 0;
  std::string kind_, name_;
  std::uint64_t total_bytes_ = 0, cache_bytes_ = 0;
};

/// A stream. Work for it is put in by kernels' launchers, between begin() and mark().
class CudaQueue final : public DeviceQueue {
 public:
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  /// The work of the next mark begins here, for what is told of when it ran. Once a mark; copy() does it by itself.
  Status begin();
  CUstream_st* stream() const;  ///< cudaStream_t

  Status copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) override;
  Status mark(std::uint64_t mark) override;
  Status wait_for(const DeviceQueue& other, std::uint64_t mark) override;
  Result<Ran> await(std::uint64_t mark) override;
  void abandon() override;

  /// Of a queue whose work waits for other ranks. While await waits, `check` is asked how that is, with the time since
  /// the work of the mark began: its error ends the wait. `abandon` then makes what waits for others end.
  struct Watch {
    std::function<Status(std::chrono::duration<double> waited)> check;
    std::function<void()> abandon;
  };
  void set_watch(Watch watch);

 private:
  friend class CudaDevice;
  struct Impl;
  explicit CudaQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
