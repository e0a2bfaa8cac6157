// The seam between the queue's policy and whatever moves the bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "io/drives/queue.h"

namespace sluice {

/// Starts single transfers and hands back raw results: bytes moved (maybe fewer than asked) or -errno. It neither
/// continues nor retries. Same threads as IoQueue. Accepts up to the capacity that it was made with and never allocates
/// after that. Destroyed only when nothing is in flight.
class IoBackend {
 public:
  virtual ~IoBackend() = default;

  /// Take a transfer, which begins at the latest with flush or reap. False when it can not take one more just now (the
  /// caller reaps and tries again).
  virtual bool start(IoTransfer* transfer) = 0;
  virtual void flush() = 0;

  struct Reaped {
    std::size_t count = 0;
    bool woken = false;  ///< by wake(), which is used up by this
  };
  using Deadline = std::chrono::steady_clock::time_point;
  static constexpr Deadline no_deadline = Deadline::max();
  /// Finished transfers into `out`. Waits until there are `min_completions` (at most out.size(); no more than there can
  /// be), or wake(), which may be noticed only then, or the deadline. It may return earlier.
  virtual Result<Reaped> reap(std::span<IoTransfer*> out, std::size_t min_completions, Deadline deadline) = 0;

  /// Transfers that have not begun are reaped with -ECANCELED, as far as that is possible.
  virtual void cancel() = 0;

  virtual void wake() = 0;  ///< any thread
};

struct BackendOptions {
  std::span<const IoFile> files;
  std::span<const std::span<std::byte>> buffers;
  std::size_t capacity = 32;  ///< transfers at a time
  std::size_t threads = 0;
  bool sqpoll = false, iopoll = false;
};

/// Each also says what it got: "io_uring, fixed files, fixed buffers 2/2".
struct MadeBackend {
  std::unique_ptr<IoBackend> backend;
  std::string description;
};
/// fault with the kernel's reason when it does not allow io_uring.
Result<MadeBackend> make_uring_backend(const BackendOptions& options);
/// fault with the kernel's reason where it can not queue (fs.aio-max-nr is used up, no poll on descriptors).
Result<MadeBackend> make_libaio_backend(const BackendOptions& options);
Result<MadeBackend> make_threads_backend(const BackendOptions& options);
std::unique_ptr<IoBackend> make_fault_backend(std::unique_ptr<IoBackend> inner, const FaultOptions& faults,
                                              std::span<const IoFile> files, std::size_t capacity);

}  // namespace sluice
