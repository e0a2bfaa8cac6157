// Asynchronous reads and writes on a few files, with a sliding window of requests.
//
//     IoQueue (window, continuation of short transfers, retries, counters)
//         -> IoBackend: io_uring | threads | injected faults around either (io/backend.h)
//
// Use: make_queue, then submit() until it refuses, wait() for completions, submit more. Requests belong to the caller
// and must stay where they are until wait() has handed them back. Nothing allocates after make_queue.
//
// Threads: one thread at a time owns the queue and calls submit, wait and drain; it may differ from the one that made
// the queue. wake() and counters() may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/fault.h"
#include "sluice/status.h"

namespace sluice {

enum class IoOp : std::uint8_t {
  read,
  write,
  sync,  ///< fdatasync of the file: covers writes that had completed before it was submitted; bytes is 0
};
const char* io_op_name(IoOp op);

/// An open file of a queue. The queue does not close it. `alignment_bytes` is what the file asks of offsets, sizes and
/// addresses: 4096 with O_DIRECT, 1 otherwise.
struct IoFile {
  int fd = -1;
  std::string path;
  std::uint32_t alignment_bytes = 1;
};

struct IoRequest;

/// One attempt at (the rest of) a request: what a backend sees.
struct IoTransfer {
  IoOp op = IoOp::read;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
  std::int64_t result = 0;     ///< bytes moved, or -errno; set by the backend
  IoTransfer* next = nullptr;  ///< for the list that holds it
  IoRequest* request = nullptr;
};

/// Filled by the caller, completed by the queue.
struct IoRequest {
  IoOp op = IoOp::read;
  std::uint32_t file = 0;    ///< index in QueueOptions::files
  std::uint64_t offset = 0;  ///< in the file
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
  void* user = nullptr;  ///< the caller's, untouched

  /// Set when wait() returns the request: bytes moved (all of them unless it failed) and 0 or an errno value. EOF on a
  /// read is ENODATA. IoQueue::status makes the message.
  std::uint64_t done_bytes = 0;
  int error = 0;

  IoTransfer transfer;  ///< the queue's
  std::uint32_t retries = 0;
};

struct IoCounters {
  std::uint64_t read_bytes = 0, write_bytes = 0;  ///< moved by the kernel
  std::uint64_t requests = 0;                     ///< completed, failed ones included
  std::uint64_t transfers = 0;                    ///< attempts: requests + continuations + retries
  std::uint64_t in_flight_max = 0;
};

class IoBackend;

class IoQueue {
 public:
  IoQueue(std::unique_ptr<IoBackend> backend, std::vector<IoFile> files, std::size_t depth, std::string description);
  /// Waits for requests in flight, so that no memory is written to afterwards; their completions are dropped.
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  /// Start a request. False when `depth` requests are in flight: wait first. A request that can not be started
  /// (misaligned, bad file index) completes with an error.
  [[nodiscard]] bool submit(IoRequest* request);

  using Duration = std::chrono::nanoseconds;
  static constexpr Duration forever = Duration::max();
  /// Completed requests into `out`, failed ones too: look at IoRequest::error or status(). Blocks until
  /// `min_completions` (at most out.size()) are there, wake() is called or `timeout` is over, and returns how many
  /// there are. With 0 it polls. Asking for more than are in flight is how a lane waits for new work: then only wake()
  /// or the timeout ends it. Error: the backend itself broke.
  Result<std::size_t> wait(std::size_t min_completions, std::span<IoRequest*> out, Duration timeout = forever);

  /// Make the wait() in progress, or else the next one, return early. Any thread.
  void wake();

  /// Wait until nothing is in flight; completions are dropped, but the first failure is returned.
  Status drain();

  /// Success, or one line with operation, path, offset, bytes and cause. Allocates: not for the hot path.
  Status status(const IoRequest& request) const;

  std::size_t in_flight() const { return in_flight_; }
  std::size_t depth() const { return depth_; }
  IoCounters counters() const;
  const std::string& description() const { return description_; }  ///< "io_uring, depth 32, fixed buffers 2/2, ..."

 private:
  void start_rest(IoRequest* request);
  void start_pending();
  bool finish_transfer(IoTransfer* transfer);
  int refuse_reason(const IoRequest& request) const;

  std::unique_ptr<IoBackend> backend_;
  std::vector<IoFile> files_;
  std::size_t depth_;
  std::string description_;
  std::size_t in_flight_ = 0;
  IoTransfer* completed_ = nullptr;  ///< without having reached the backend
  IoTransfer* pending_ = nullptr;    ///< the backend could not take them yet
  std::vector<IoTransfer*> reaped_;
  std::atomic<std::uint64_t> read_bytes_{0}, write_bytes_{0}, requests_{0}, transfers_{0}, in_flight_max_{0};
};

enum class IoBackendKind : std::uint8_t { automatic, io_uring, threads };
constexpr const char* io_backend_names[] = {"auto", "io_uring", "threads"};
Result<IoBackendKind> parse_io_backend(const std::string& name);

struct QueueOptions {
  IoBackendKind backend = IoBackendKind::automatic;  ///< automatic: io_uring where the kernel allows it
  std::size_t depth = 32;                            ///< requests in flight at most
  std::size_t threads = 4;                           ///< of the threads backend
  std::vector<IoFile> files;
  /// Memory that requests will use (arenas). Registered with the kernel where possible; other memory works too.
  std::vector<std::span<std::byte>> buffers;
  std::optional<FaultOptions> faults;
};

/// bad_request when the backend asked for by name is not available, with the kernel's reason.
Result<std::unique_ptr<IoQueue>> make_queue(const QueueOptions& options);

/// One request from start to end on an otherwise idle queue: for set-up, commit records and tests.
Status transfer_now(IoQueue& queue, IoOp op, std::uint32_t file, std::uint64_t offset, std::span<std::byte> data);

}  // namespace sluice
